"""Messages between master and workers: msgpack records, their bounds and their order."""
