"""Suites of ONNX operators against ONNX Runtime and the reference evaluator, and models for other suites."""
