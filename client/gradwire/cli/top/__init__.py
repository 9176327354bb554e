"""``gradwire top``: a master's runs and workers in a terminal.

`http_reader` and `order_reader` get `documents` from a master, over HTTP or by an operator's order.
`figures` has what they say, with everything that a terminal must not be sent taken out; `text`
shows numbers, names and curves in few columns, `roster` the workers, and `screen` the whole.
`keys` are those that people press, `viewing` is the command at work, and `command` is the command.
"""
