"""What a worker sends and what it keeps: residual feedback over vectors in the host's memory."""
