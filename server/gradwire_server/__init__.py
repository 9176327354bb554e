"""gradwire's master daemon.

`master` decides what happens to an event and does no I/O; `relay` passes updates on, `roster`
knows who takes part, `run` holds the replica, `admission` says who may not join. `daemon` is where
sockets, signals and HTTP come in; `shards` are its other processes, if it has any; `metrics` and
`http` are what operators see; `command` is the command line.
"""
