"""Importers: JAX functions, ONNX models and StableHLO modules as graphs, at given sizes or symbolic ones."""
