"""Local processes: started with keys of their own, watched, and ended."""
