"""``gradwire estimate``: whether a training scales, from the figures of one step.

`model` computes the estimate, from the sizes of updates in `sizes` and the seconds of codec and
master in `costs`; `modes` does so for each run mode, and `advice` says what to change. These do no
I/O. `calibration` measures the costs on this machine, and `measuring` takes figures from a real
run. `quantities` parses and shows numbers with units, `report` and `mode_report` show estimates,
and `command` is the command.
"""
