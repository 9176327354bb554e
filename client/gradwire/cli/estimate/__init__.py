"""``gradwire estimate``: whether a training scales, from the figures of one step.

`model` computes the estimate, from the sizes of updates in `sizes` and the seconds of codec and
master in `costs`; `advice` says what to change. These do no I/O. `calibration` measures the costs
on this machine, and `measuring` takes figures from a real run. `quantities` parses and shows
numbers with units, `report` shows an estimate, and `command` is the command.
"""
