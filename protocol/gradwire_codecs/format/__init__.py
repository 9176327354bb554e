"""Encoded updates, bit by bit: written from hits, and read straight into vectors."""
