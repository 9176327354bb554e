"""Optimizers under delay: momentum, scale, and the state that a worker takes over when it joins."""
