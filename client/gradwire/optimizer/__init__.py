"""Optimizers under delay: momentum, scale, and the state that rounds average."""
