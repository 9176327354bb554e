"""Keys and the Noise handshake."""
