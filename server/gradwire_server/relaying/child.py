"""`Child`: a worker that has connected to a relay, or another relay.

What it says is passed on as long as the parent has room for it; the rest waits here, and holds
the child's credit. So the parent keeps no more of one child than of a worker of its own.
"""

from collections import deque

from gradwire_protocol import Connection, MessageReceived, Priority
from gradwire_protocol.limits import charge_of
from gradwire_protocol.messages.kinds import Kind
from gradwire_protocol.messages.link import Link
from gradwire_protocol.messages.relays import CLOSED, MESSAGE, OPENED, Branch, Closed, Opened

PRIORITIES = {
    Kind.UPDATE: Priority.UPDATE,
    Kind.ENTRIES: Priority.UPDATE,
    Kind.BRANCH: Priority.UPDATE,
    Kind.SNAPSHOT: Priority.SNAPSHOT,
    Kind.LOGGED: Priority.LOGGED,
    Kind.HISTOGRAMS: Priority.LOGGED,
}
"""Of messages that are passed on; all others are control messages."""


def priority_of(kind: int) -> Priority:
    """Return the priority of a message of a kind."""
    return PRIORITIES.get(kind, Priority.CONTROL)  # type: ignore[call-overload,no-any-return]


class Child:
    """A connection to a relay, as its parent is told of it.

    Parameters
    ----------
    connection : Connection
    number : int
        Of its branch.
    parent : Link
    window_bytes : int
        What the parent keeps of it.
    """

    def __init__(
        self, connection: Connection, number: int, parent: Link, window_bytes: int
    ) -> None:
        self.connection = connection
        self.number = number
        self._parent = parent
        self._window_bytes = window_bytes
        self._end: Closed | None = None
        """How its connection has ended."""
        self._is_told = False
        self._index = 0
        self._lent = 0
        """Bytes that the parent has not given back."""
        self._waiting: deque[MessageReceived] = deque()
        opened = Opened.of(connection.identity)
        self._tell(Branch(number, 0, OPENED, body=opened.pack()), Priority.CONTROL)

    def pass_on(self, event: MessageReceived) -> None:
        """Pass a message on, or let it wait."""
        self._waiting.append(event)
        self._go_on()

    def give_back(self, charge: int) -> None:
        """Note that the parent has used what it has."""
        self._lent = max(self._lent - charge, 0)
        self._go_on()

    def end(self, code: int, reason: str, *, by_peer: bool) -> None:
        """Tell the parent that the connection is over, after all that was received."""
        self._end = Closed.of(code, reason, by_peer=by_peer)
        self._go_on()

    def drop(self) -> None:
        """Pass nothing on any more: the parent has ended the connection."""
        self._waiting.clear()

    @property
    def is_over(self) -> bool:
        """Whether its connection is."""
        return self._end is not None

    @property
    def is_told(self) -> bool:
        """Whether the parent was told that it is over."""
        return self._is_told

    def _go_on(self) -> None:
        """Pass on what the parent has room for.

        It gives back a quarter of its window at a time, so there is room for the largest message if
        it has not more than that.
        """
        while self._waiting:
            event = self._waiting[0]
            charge = charge_of(event.message.total)
            is_full = self._lent + charge > self._window_bytes
            if is_full and self._lent > self._window_bytes // 4:
                return
            self._waiting.popleft()
            self._lent += charge
            said = Branch(
                self.number, 0, MESSAGE, event.stream, event.number, event.kind,
                bytes(event.payload),
            )  # fmt: skip
            self._tell(said, priority_of(event.kind))
            self.connection.release(event.charge)
        if self._end is not None and not self._is_told:
            self._is_told = True
            closed = Branch(self.number, 0, CLOSED, body=self._end.pack())
            self._tell(closed, Priority.CONTROL)

    def _tell(self, said: Branch, priority: Priority) -> None:
        branch = Branch(
            said.branch, self._index, said.act, said.stream, said.number, said.kind, said.body
        )
        self._index += 1
        self._parent.send_branch(branch, priority)
