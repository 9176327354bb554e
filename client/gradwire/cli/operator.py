"""`Operator`: gives a master one order, and waits for its answer.

Like a worker it does no I/O: the network thread passes events and the time to it. The answer goes
to the thread that waits for it.
"""

from concurrent.futures import Future

from gradwire.errors import (
    ConnectionLostError,
    DeadlineError,
    GradwireError,
    ProtocolError,
    RefusedError,
)
from gradwire.worker.dialing import Dialing
from gradwire_protocol import (
    CloseCode,
    Connected,
    Connection,
    Disconnected,
    Event,
    InvalidMessageError,
    MessageReceived,
)
from gradwire_protocol.messages.admission import Refuse
from gradwire_protocol.messages.kinds import EndCode
from gradwire_protocol.messages.link import Link, Message
from gradwire_protocol.messages.orders import Order, OrderDone


class Operator:
    """One order and its answer."""

    def __init__(self, order: Order, master: str) -> None:
        self._order = order
        self._master = master
        self._link: Link | None = None
        self._dialing: Dialing | None = None
        self._answer: Future[str] = Future()

    def wait(self, timeout: float) -> str:
        """Return the master's answer; for another thread than the network thread.

        Raises
        ------
        RefusedError
            If the master does not carry out the order.
        TransportError
            If there is no answer.
        ProtocolError
            If the answer makes no sense.
        """
        try:
            return self._answer.result(timeout)
        except TimeoutError:
            raise DeadlineError(
                f"the master at {self._master} did not answer the order within {timeout:g} s; "
                "`gradwire operate status` may show whether it was carried out"
            ) from None

    @property
    def is_refused(self) -> bool:
        """Whether nothing listens at the master's port."""
        return self._dialing is not None and self._dialing.is_refused

    # The network thread.

    def dial(self, dialing: Dialing, now: float) -> None:
        """Dial the master by the first way of a dialing."""
        self._dialing = dialing
        self._link = Link(dialing.dial(now))

    def handle_event(self, connection: Connection, event: Event, now: float) -> None:
        """Act on what the connection to the master reports."""
        if self._link is None or self._dialing is None or self._answer.done():
            return
        link = self._dialing.link_for(self._link, connection, event, now)
        if link is None:
            return
        self._link = link
        match event:
            case Connected():
                link.send(self._order)
            case MessageReceived():
                self._receive(link, event, now)
            case Disconnected(code=CloseCode.UNREACHABLE):
                if not self._dialing.failed(event.reason, now):
                    self.on_closed(self._dialing.error())
            case Disconnected():
                self.on_closed(
                    ConnectionLostError(
                        f"the master at {self._master} ended the connection: {event.reason}"
                    )
                )

    def handle_timer(self, now: float) -> None:
        """Dial again, when it is time to."""
        deadline = self.next_timer()
        if self._dialing is not None and deadline is not None and now >= deadline:
            self._link = Link(self._dialing.dial(now))

    def next_timer(self) -> float | None:
        """Return when `handle_timer` has to be called at the latest."""
        return None if self._dialing is None else self._dialing.next_at

    def on_closed(self, error: GradwireError | None) -> None:
        """Note that no answer will come."""
        if not self._answer.done():
            self._answer.set_exception(error or ConnectionLostError("the connection is closed"))

    def _receive(self, link: Link, event: MessageReceived, now: float) -> None:
        try:
            for message in link.receive(event):
                self._take(link, message, now)
        except InvalidMessageError as error:
            link.connection.close(CloseCode.INVALID_MESSAGE, str(error), now)
            self.on_closed(
                ProtocolError(f"the master at {self._master} broke the protocol: {error}")
            )

    def _take(self, link: Link, message: Message, now: float) -> None:
        if self._answer.done():
            return
        match message:
            case OrderDone():
                self._answer.set_result(message.text)
            case Refuse():
                reason = f"the master at {self._master} refused: {message.reason}"
                self._answer.set_exception(RefusedError(message.code, reason))
            case _:
                raise InvalidMessageError(f"{type(message).__name__} in answer to an order")
        link.connection.close(EndCode.DONE, "done", now)
