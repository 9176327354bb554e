"""Messages between masters: a standby and its primary, a relay and the master it stands before."""
