"""What a master keeps: its run and roster, updates to relay, and the backlog of each member."""
