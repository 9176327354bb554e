"""Updates one by one: how many, whether to believe them, their sums, the last ones."""
