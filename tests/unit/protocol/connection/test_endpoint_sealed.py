"""Endpoints with keys: who is told what, and how connections end that should."""

from collections.abc import Callable

import pytest

from gradwire_protocol import (
    CloseCode,
    Connected,
    Connection,
    Credentials,
    Disconnected,
    Drop,
    Endpoint,
    Keyring,
    Priority,
    State,
    UsageError,
)
from gradwire_protocol.connection.connection import RESET_SILENCE_SECONDS
from gradwire_protocol.limits import (
    EPOCH_PACKETS_BITS,
    RESET_DATAGRAM_BYTES_MIN,
    VECTOR_PACKETS_MIN,
)
from gradwire_protocol.wire.packets import (
    TRANSPORT,
    TRANSPORT_HEADER,
    pack_reset,
    pack_retry,
)
from support.endpoints import (
    NOW,
    PLAIN,
    ask,
    drops,
    events_of,
    hand_over,
    sent_by,
    versions_for,
)
from support.insides import go_on_from
from support.keyed import OTHER_RUN_KEY, RUN_KEY, TimeOfDay, dialling_with, listening_with
from support.wording import naming

EPOCH = 2**EPOCH_PACKETS_BITS


class Line:
    """A worker and its master, and what goes from one to the other."""

    def __init__(self) -> None:
        self.now = NOW
        self.worker, self.master = dialling_with(), listening_with(RUN_KEY)
        self.dialled = self.worker.connect("master", self.now)
        self.exchange()
        [self.accepted] = self.master.connections()
        self.exchange()
        self.opened = [*events_of(self.worker), *events_of(self.master)]

    def exchange(self, lets_pass: Callable[[bytes], bool] = lambda _: True) -> None:
        """Let everything that may leave arrive, until there is nothing more."""
        ends = ((self.worker, self.master, "worker"), (self.master, self.worker, "master"))
        while sum(self._carry(*end, lets_pass) for end in ends):
            self.now += 0.001

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now = min(self.now + 0.005, until)
            for endpoint in (self.worker, self.master):
                endpoint.handle_timer(self.now)
            self.exchange()

    def _carry(
        self, source: Endpoint, target: Endpoint, name: str, lets_pass: Callable[[bytes], bool]
    ) -> int:
        datagrams = [datagram for datagram, _ in sent_by(source, self.now)]
        for datagram in filter(lets_pass, datagrams):
            hand_over(target, [datagram], name, self.now)
        return len(datagrams)


def ends(endpoint: Endpoint) -> list[Disconnected]:
    """Return how connections ended that are to be reported now."""
    return [event for _, event in events_of(endpoint) if isinstance(event, Disconnected)]


def test_a_key_of_ones_own_is_no_keyring_to_let_others_in_with() -> None:
    credentials = Credentials(key=RUN_KEY.worker_key("worker"), unix_time_ns=TimeOfDay())

    with pytest.raises(UsageError, match=naming("credentials", "keyring")):
        Endpoint(PLAIN, random_bytes=bytes, connections_max=1, credentials=credentials)


# Cookies.


def sent_init(endpoint: Endpoint) -> bytes:
    endpoint.connect("master", NOW)
    return sent_by(endpoint)[0][0]


def test_a_retry_after_the_connection_is_open_changes_nothing() -> None:
    line = Line()

    hand_over(line.worker, [pack_retry(line.dialled.session_id, b"c" * 16)], "master", line.now)

    assert drops(line.worker) == {Drop.DUPLICATE: 1}
    assert sent_by(line.worker, line.now) == []


# Other versions.


def test_who_says_that_the_master_speaks_another_version_does_not_stop_the_handshake() -> None:
    worker, master = dialling_with(), listening_with(RUN_KEY)
    connection = worker.connect("master", NOW)
    [accept] = ask(master, sent_init(worker), "worker")

    hand_over(worker, [versions_for(connection, 2)])
    hand_over(worker, [accept], "master")

    assert events_of(worker) == [(connection, Connected())]


def test_it_is_believed_when_nobody_answers_besides() -> None:
    worker = dialling_with()
    connection = worker.connect("master", NOW)
    hand_over(worker, [versions_for(connection, 2)])
    assert events_of(worker) == []

    sent_by(worker)
    while (timer := worker.next_timer()) is not None:
        worker.handle_timer(timer)
        sent_by(worker, timer)

    assert ends(worker) == [Disconnected(CloseCode.VERSION, "2", by_peer=True)]


# RESETs.


def restarted_for(connection: Connection, *, size: int = RESET_DATAGRAM_BYTES_MIN) -> list[bytes]:
    """Return what a master that was restarted answers to a packet of a connection."""
    session_id = connection.sender.peer_session_id
    packet = TRANSPORT_HEADER.pack(TRANSPORT, 0, 0, session_id, 77).ljust(size, b"\0")
    return ask(listening_with(RUN_KEY, seed=7), packet, "worker")


def test_after_a_silence_a_reset_does_not_say_which_side_was_away() -> None:
    """A worker that stood still, as a suspended laptop does, takes what it missed for a restart."""
    reasons = []
    for silence in (0.5 * RESET_SILENCE_SECONDS, 41.0):
        line = Line()
        [reset] = restarted_for(line.dialled)
        hand_over(line.worker, [reset], "master", line.now + silence)
        reasons.append(ends(line.worker)[0].reason)

    assert reasons[0] == naming("restarted")
    assert "silent" not in reasons[0]
    assert reasons[1] == naming("restarted", "this process was silent", "41 s")


def test_a_connection_that_is_not_open_yet_is_not_reset() -> None:
    worker = dialling_with()
    connection = worker.connect("master", NOW)

    hand_over(worker, [pack_reset(connection.session_id, bytes(16))], "master")

    assert connection.state is State.CONNECTING


# Keyrings.


def test_who_is_on_the_way_out_is_not_closed_again() -> None:
    line = Line()
    line.accepted.close(CloseCode.NONE, "bye", line.now)

    line.master.set_keyring(Keyring([OTHER_RUN_KEY]), line.now)

    assert line.accepted.state is State.CLOSING
    assert events_of(line.master) == []


# Epochs.


def test_a_train_that_begins_an_epoch_is_taken_as_a_whole() -> None:
    line = Line()
    line.wait(1.0)
    go_on_from(line.dialled, EPOCH)
    line.dialled.send(0, 0, 1, bytes(7_000), Priority.UPDATE)
    datagrams = [datagram for datagram, _ in sent_by(line.worker, line.now)]
    assert len(datagrams) > VECTOR_PACKETS_MIN

    hand_over(line.master, datagrams, "worker", line.now)

    assert line.master.counters.epochs_begun == 1
    assert drops(line.master) == {}
    assert len(events_of(line.master)) == 1
