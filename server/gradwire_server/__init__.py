"""gradwire's master daemon.

`master` decides what follows from an event and does no I/O; `relay` passes updates on, `roster`
lists the members, `run` holds the replica, `admission` says who may not join. `daemon` has the
sockets, the signals and HTTP; `metrics` and `http` are what operators see; `command` is the command
line.
"""
