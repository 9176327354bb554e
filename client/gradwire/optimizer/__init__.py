"""What delays do to an optimizer: momentum, scale, and the state that a late joiner takes over."""
