"""The buffers of a module: `layout` describes them and what all use, `message` sends them."""
