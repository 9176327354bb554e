"""Keys and checkpoints as files on this machine."""
