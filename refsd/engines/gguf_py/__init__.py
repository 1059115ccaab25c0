"""gguf-py's dequantization."""
