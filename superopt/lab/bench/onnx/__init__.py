"""ONNX operators against ONNX Runtime and the reference."""
