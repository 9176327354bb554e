"""What workers log of their training, and what happens to them, for people to look at."""
