"""How an engine rounds, as a value, and the arithmetic that rounds so; tensors and errors."""
