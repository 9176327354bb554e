"""Checkpoints: a run as a file; `format` has the file, `values` the parameters in it."""
