"""Read and write files of weights: GGUF, safetensors, torch. These readers know no model."""
