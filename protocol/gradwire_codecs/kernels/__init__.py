"""Compiled loops over whole vectors, how they are compiled, and threads that run them."""
