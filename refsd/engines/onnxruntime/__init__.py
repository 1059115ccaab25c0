"""onnxruntime as an engine."""
