"""`Clocks`: how many steps other workers have made, as the network thread heard it."""

from collections.abc import Mapping


class Clocks:
    """What was heard of the steps of others. Safe for one thread that hears and one that reads."""

    def __init__(self) -> None:
        self.latest: Mapping[int, int] = {}
        """By rank: how many of its steps are in what was received of it last, where that is
        said."""
        self.first: int | None = None
        """What was heard first of anybody."""

    def hear(self, clocks: Mapping[int, int]) -> None:
        """Take in what was said with updates."""
        if clocks:
            self.first = max(clocks.values()) if self.first is None else self.first
            self.latest = {**self.latest, **clocks}
