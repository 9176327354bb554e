"""The demo: a character transformer learns Python's standard library, by four workers and UDP.

`text` is the data, `model` the network, `train` what every worker process runs: a training loop as
anyone would write it, with gradwire's two lines. `command` starts the processes, `display` shows
them while they run, `report` tells what came of it.
"""
