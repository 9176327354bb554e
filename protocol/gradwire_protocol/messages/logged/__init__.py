"""What workers log for people to look at."""
