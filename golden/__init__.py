"""The oracle: cases, recipes, numerics, bounds, verdicts and engines. It knows no model."""
