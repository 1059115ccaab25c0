"""Random cases of every operation, drawn from what the operations' pages declare; an engine's answers to them."""
