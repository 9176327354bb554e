"""Keys, and the Noise handshake that is made with them."""
