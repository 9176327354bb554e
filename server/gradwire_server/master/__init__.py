"""The master, sans-IO: how it handles each message of each worker."""
