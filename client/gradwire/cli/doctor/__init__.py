"""``gradwire doctor``: what is wrong between this machine and a master, and what to do about it.

`command` is the command, `checks` a result and how it is shown. `machine` looks at this machine,
`reach` at the way to the other end, `talk` and `measuring` at what that way carries. `serving` is
the other end, where there is no master.
"""
