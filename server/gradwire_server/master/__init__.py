"""The master itself, sans-IO: what it does with each message of each worker."""
