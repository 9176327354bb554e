"""What a session does besides sharing parameters, one module for each."""
