"""Buffers of a module: `layout` describes and sends them, `agreement` says which all use."""
