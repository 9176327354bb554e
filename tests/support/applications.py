"""What applications of tests and benchmarks have in common."""


class Untimed:
    """An application that has nothing to do by itself."""

    def handle_timer(self, now: float) -> None: ...

    def next_timer(self) -> float | None:
        return None
