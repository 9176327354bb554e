"""`join` and `Session`: what a training loop holds, from its first attempt to its end."""
