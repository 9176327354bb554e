"""What master and workers say to each other: records in msgpack, their bounds, and their order."""
