"""ONNX models: read, converted to a JAX function, and imported as a graph; `frontend` is the entry."""
