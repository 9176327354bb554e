"""What the training thread and the network thread share, and the network thread itself."""
