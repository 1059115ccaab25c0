"""The oracle: cases, recipes, bounds, verdicts and the engine protocol. It imports no model."""
