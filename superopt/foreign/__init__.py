"""Operations from outside superopt: equations kept verbatim as modules, ONNX operators on the host, custom calls."""
