"""What workers log of their training, in bounded memory, for people to look at."""
