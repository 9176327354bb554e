"""What applications of tests and benchmarks have in common."""

from gradwire_protocol import Connection, Event


class Untimed:
    """An application that has nothing to do by itself."""

    def handle_timer(self, now: float) -> None: ...

    def next_timer(self) -> float | None:
        return None


class Deaf(Untimed):
    """An application that hears nothing."""

    def handle_event(self, connection: Connection, event: Event, now: float) -> None: ...
