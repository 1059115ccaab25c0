"""Judge gguf-py's dequantization."""
