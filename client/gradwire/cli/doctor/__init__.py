"""``gradwire doctor``: `probes` of a master, `verdicts` on them, and the `command`."""
