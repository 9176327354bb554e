"""Compiled loops over whole vectors, and how they are compiled."""
