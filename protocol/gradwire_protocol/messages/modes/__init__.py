"""How the workers of a run train together, and the optimizer that a master may have."""
