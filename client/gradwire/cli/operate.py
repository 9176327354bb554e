"""``gradwire operate``: an order to a running master, whose answer goes to stdout.

`Operator` gives the order, and waits for the answer. Like a worker it does no I/O: the network
thread passes events and the time to it. The answer goes to the thread that waits for it.
"""

import os
from concurrent.futures import Future
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Final

import typer

from gradwire.errors import (
    ConnectionLostError,
    DeadlineError,
    GradwireError,
    ProtocolError,
    RefusedError,
    UnreachableError,
    UsageError,
)
from gradwire.settings.credentials import credentials_of
from gradwire.settings.settings import Settings, resolve_settings
from gradwire.threads.network import NetworkThread
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
from gradwire_protocol.crypto.keys import Role
from gradwire_protocol.messages.admission import Refuse
from gradwire_protocol.messages.kinds import EndCode
from gradwire_protocol.messages.link import Link, Message
from gradwire_protocol.messages.orders import Action, Order, OrderDone
from gradwire_udp import resolve_all, show_addresses

ANSWER_SECONDS: Final = 10.0
"""Time for the answer of a master that is reached: orders are carried out at once."""

KEYLESS_SECONDS: Final = 2.0
"""Time for the first answer of a master on this machine to an operator without a key: one that has
keys says nothing, and one that has none answers at once."""

MAKE_KEY: Final = (
    "make one with `gradwire keygen --worker NAME --role operator --from run.key`, and say "
    "--key-file NAME.key"
)


def operate(
    action: Annotated[
        Action,
        typer.Argument(
            help="What to do. status: show the workers. drain: let no more workers in, and stop "
            "when the last one has left. resume: let workers in again. deny NAME: accept no key of "
            "this name. admit NAME: accept such keys again. release NAME: end a quarantine. expel "
            "NAME: close a connection. checkpoint: write one. stop-training: tell all scripts to "
            "end; those with a loop of their own have to look at session.stopping. pause-items, "
            "resume-items: grant no items of session.items(), grant them again. pause-items "
            "EPOCHS: none of later epochs. end-run: send the workers away; the next one to join "
            "begins another run.",
        ),
    ],
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="Which worker, by the name in its key; for release and expel, also by rank. For "
            "pause-items, how many epochs.",
            show_default=False,
        ),
    ] = None,
    *,
    run: Annotated[
        str | None,
        typer.Option(
            envvar="GRADWIRE_RUN",
            metavar="NAME",
            help="Which run, for orders about a run or its workers, where the master serves "
            "several.",
            show_default=False,
        ),
    ] = None,
    master: Annotated[
        str,
        typer.Option(
            envvar="GRADWIRE_MASTER",
            metavar="HOST:PORT",
            help="Where the master listens.",
            show_default=False,
        ),
    ],
    key_file: Annotated[
        Path | None,
        typer.Option(
            envvar="GRADWIRE_KEY_FILE",
            metavar="PATH",
            help="The key of an operator (gradwire keygen --role operator), or a run key.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Give a running master an order.

    Shows the master's answer; the status is JSON. Changes last until the master ends.
    Exit status: 0 done, 4 refused, 5 no answer.
    """
    try:
        order = Order.from_plain({"action": action.value, "name": name or "", "run": run})
    except ValueError as error:
        raise UsageError(str(error)) from None
    settings = resolve_settings({"master": master, "key_file": key_file}, os.environ)
    typer.echo(answer_to(order, settings))


def answer_to(order: Order, settings: Settings) -> str:
    """Give the master an order, and return its answer.

    Raises
    ------
    UsageError
        If the settings have no operator's key, and the master may want one.
    RefusedError
        If the master does not carry out the order.
    TransportError
        If there is no answer.
    """
    credentials = credentials_of(settings.key, settings.key_file, role=Role.OPERATOR)
    addresses = resolve_all(settings.master)
    key = None if credentials is None else credentials.key
    if key is None and not all(ip_address(address[0]).is_loopback for _, address in addresses):
        raise UsageError(
            f"an operator needs a key, but for a master without keys on loopback: {MAKE_KEY}"
        )
    if key is not None and key.role is not Role.OPERATOR:
        raise UsageError(
            f"{key.name} has the key of role {key.role.name.lower()}: orders take one made with "
            "`gradwire keygen --role operator`"
        )
    shown = show_addresses(addresses)
    operator = Operator(order, shown)
    if key is None:
        seconds = min(settings.connect_timeout_seconds, KEYLESS_SECONDS)
        settings = replace(settings, connect_timeout_seconds=seconds)
    network = NetworkThread(settings, operator, operator.on_closed, credentials)
    try:
        network.start(addresses)
    except OSError as error:
        raise UnreachableError(f"no socket to reach {shown} with: {error}") from None
    try:
        return operator.wait(settings.connect_timeout_seconds + ANSWER_SECONDS)
    except UnreachableError:
        if key is None and not operator.is_refused:
            raise UnreachableError(
                f"the master at {shown} does not answer an operator without a key, as one with "
                f"keys does not: {MAKE_KEY}"
            ) from None
        raise
    finally:
        network.stop()


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
