"""Messages cut into fragments, reassembled and delivered once."""
