"""How the replica begins, comes back after a restart, and is checked and repaired."""
