"""A model's forward as an ONNX graph: the same code runs over arrays that record what is done to them."""
