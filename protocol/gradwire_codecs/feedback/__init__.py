"""Residual feedback over vectors in the host's memory: what a worker sends, and what it keeps."""
