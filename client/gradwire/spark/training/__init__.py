"""`fit`: the driver's half and the tasks'."""
