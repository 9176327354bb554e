"""The training thread's side: what a step pushes, what it pulls, and the replica between."""
