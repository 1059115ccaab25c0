"""PyTorch, with diffusers, transformers and spandrel."""
