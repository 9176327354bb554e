"""What a master keeps: its run and roster, and which updates each member was sent."""
