"""An endpoint that does what a test says, for what drives it."""

from collections import deque
from collections.abc import Callable

from gradwire_protocol import Address, Connection, Endpoint, Event
from gradwire_protocol.connection.train import Train
from gradwire_udp import Read
from support.datagrams import Datagram, cut


class ScriptedEndpoint(Endpoint):
    """Sends what it is given, and writes down what happens to it."""

    def __init__(self) -> None:
        self.trains: deque[Train] = deque()
        """What is to be sent."""
        self.events: deque[tuple[Connection, Event]] = deque()
        self.deadline: float | None = None
        self.reads: list[list[Datagram]] = []
        self.received_at: list[float] = []
        self.fired_at: list[float] = []
        self.steps = ""
        """What was called: r for `receive`, t for a train taken, n for none left, ! for a timer."""
        self.on_receive: Callable[[], None] = lambda: None

    @property
    def received(self) -> list[Datagram]:
        return [datagram for read in self.reads for datagram in read]

    # What a driver asks for.

    def connections(self) -> list[Connection]:
        return []

    def receive(
        self, view: memoryview, segment: int, address: Address, ecn: int, now: float
    ) -> None:
        self.steps += "r"
        self.reads.append(cut(Read(view, segment, address, ecn)))
        self.received_at.append(now)
        self.on_receive()

    def next_event(self) -> tuple[Connection, Event] | None:
        return self.events.popleft() if self.events else None

    def on_blocked(self, now: float) -> None:
        """Take no notice."""

    def next_train(self, now: float) -> Train | None:
        self.steps += "t" if self.trains else "n"
        return self.trains.popleft() if self.trains else None

    def next_timer(self) -> float | None:
        return self.deadline

    def handle_timer(self, now: float) -> None:
        if self.deadline is not None and now >= self.deadline:
            self.steps += "!"
            self.deadline = None
            self.fired_at.append(now)
