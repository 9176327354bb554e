"""One connection from its handshake to its end, and the endpoint that holds many."""
