"""``gradwire estimate``: `formulas`, a step measured from a `script`, and the `command`."""
