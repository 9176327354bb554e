"""The demo: four workers train a character transformer on Python's standard library, over UDP.

`text` is the data, `model` the network, and `train` the program of every worker: a usual training
loop, with gradwire's two lines. `race` runs the processes, `display` shows their progress, `report`
their result, and `command` is the command.
"""
