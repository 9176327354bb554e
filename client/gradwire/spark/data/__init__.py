"""Columns of a DataFrame as batches of tensors, and where workers read them."""
