"""``gradwire estimate``: will it scale? From a step's figures to what more workers are worth.

`quantities` reads what people write, `sizes` says how large updates are, `costs` what the codec and
a master take, and `model` puts them together, without any I/O; `advice` says what to change.
`calibration` measures the costs on this machine, `measuring` takes the figures from a real run,
`report` shows what came of it, `command` is the command.
"""
