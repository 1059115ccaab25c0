"""ONNX's own reference, onnx.reference.ReferenceEvaluator, as an engine."""
