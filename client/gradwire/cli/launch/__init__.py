"""Local processes with keys of their own: how they are started, watched and ended."""
