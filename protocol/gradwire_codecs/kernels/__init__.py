"""Compiled loops over whole vectors, and what compiles them and runs them side by side."""
