"""Programs in: JAX functions and ONNX models as graphs, at given sizes or symbolic ones."""
