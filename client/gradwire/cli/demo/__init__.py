"""``gradwire demo``: workers train a character transformer on Python's standard library."""
