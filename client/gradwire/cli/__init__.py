"""The command line: ``gradwire run``, ``demo``, ``estimate``, ``keygen``, ``operate``."""
