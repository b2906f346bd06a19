"""ONNX models in: read, made a JAX function, imported; `frontend` is the entry."""
