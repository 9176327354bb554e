"""What a master knows: its run and roster, what it relays, and what waits for whom."""
