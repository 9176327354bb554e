"""``gradwire doctor``: what is wrong between this machine and a master, and what to do about it.

`command` is the command, `checks` a result and how it is shown. `machine` checks this machine,
`reach` the path to the other end, and `measuring` what that path carries, with the messages of
`talk`. `serving` is the other end, where there is no master.
"""
