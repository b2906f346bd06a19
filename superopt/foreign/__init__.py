"""Operations that others define: equations kept verbatim as modules, ONNX operators on the host, custom calls."""
