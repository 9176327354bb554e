"""What workers have besides the replica, and tell each other: buffers, and an optimizer's state."""
