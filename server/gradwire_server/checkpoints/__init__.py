"""Checkpoints: when they are written, the thread and the folder for them, and resuming from one."""
