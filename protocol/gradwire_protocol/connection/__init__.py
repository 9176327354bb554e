"""Connections from handshake to end, and the endpoint that holds them."""
