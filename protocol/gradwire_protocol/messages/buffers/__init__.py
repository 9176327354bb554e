"""Buffers of a module: `layout` describes, `message` sends, `agreement` says which all use."""
