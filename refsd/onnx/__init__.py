"""Say an operation, a block or a model of refsd as an ONNX graph. Needs the extra `onnx`."""
