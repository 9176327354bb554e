"""A relay: it lets workers in for a master, and sends them the log for it."""
