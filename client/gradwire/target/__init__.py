"""Targets as flat vectors: arrays, lists of tensors, modules and their buffers."""
