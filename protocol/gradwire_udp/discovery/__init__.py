"""Where a master announces itself, and how a worker finds it there."""
