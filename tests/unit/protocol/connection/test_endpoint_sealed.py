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
    INITS_BURST,
    RESET_DATAGRAM_BYTES_MIN,
    VECTOR_PACKETS_MIN,
)
from gradwire_protocol.wire.packets import (
    INIT_BYTES,
    RETRY,
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
from support.insides import go_on_from, keys_of
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


def test_an_initiator_comes_back_with_its_cookie_at_once() -> None:
    master, worker = listening_with(RUN_KEY), dialling_with()
    forged = bytearray(sent_init(dialling_with(seed=9)))
    forged[100] ^= 1
    for _ in range(INITS_BURST):
        assert ask(master, bytes(forged), "flood") == []
    connection = worker.connect("master", NOW)

    [retry] = ask(master, sent_by(worker)[0][0], "worker")
    hand_over(worker, [retry], "master")
    [again] = [datagram for datagram, _ in sent_by(worker)]
    [accept] = ask(master, again, "worker")
    hand_over(worker, [accept], "master")

    assert retry[0] == RETRY
    assert len(again) == INIT_BYTES
    assert connection.state is State.OPEN


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


def test_a_reset_ends_the_connection_it_was_made_for() -> None:
    line = Line()

    [reset] = restarted_for(line.dialled)
    hand_over(line.worker, [reset], "master", line.now)

    [end] = ends(line.worker)
    assert (end.code, end.by_peer) == (CloseCode.RESET, True)
    assert line.dialled.state is State.CLOSED
    assert line.worker.counters.resets_received == 1
    assert sent_by(line.worker, line.now) == []
    hand_over(line.worker, [reset], "master", line.now)
    assert drops(line.worker) == {Drop.UNKNOWN_SESSION: 1}


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


@pytest.mark.parametrize("what", ["session", "token"])
def test_a_reset_with_another_session_or_token_changes_nothing(what: str) -> None:
    line = Line()
    [reset] = restarted_for(line.dialled)
    at = 4 if what == "session" else 8

    hand_over(line.worker, [reset[:at] + bytes([reset[at] ^ 1]) + reset[at + 1 :]], "master")

    assert line.dialled.state is State.OPEN
    assert drops(line.worker) == {Drop.UNKNOWN_SESSION: 1}


def test_a_connection_that_is_not_open_yet_is_not_reset() -> None:
    worker = dialling_with()
    connection = worker.connect("master", NOW)

    hand_over(worker, [pack_reset(connection.session_id, bytes(16))], "master")

    assert connection.state is State.CONNECTING


# Keyrings.


@pytest.mark.parametrize(
    "keyring", [Keyring([RUN_KEY], ["worker"]), Keyring([OTHER_RUN_KEY])], ids=["denied", "retired"]
)
def test_who_is_not_admitted_any_more_is_told_so(keyring: Keyring) -> None:
    line = Line()

    line.master.set_keyring(keyring, line.now)
    line.exchange()

    reason = "the key of this worker is not accepted any more"
    assert ends(line.master) == [Disconnected(CloseCode.DENIED, reason, by_peer=False)]
    assert ends(line.worker) == [Disconnected(CloseCode.DENIED, reason, by_peer=True)]


def test_who_is_admitted_stays() -> None:
    line = Line()

    line.master.set_keyring(Keyring([OTHER_RUN_KEY, RUN_KEY], ["other"]), line.now)
    line.exchange()

    assert line.accepted.state is line.dialled.state is State.OPEN


def test_who_is_on_the_way_out_is_not_closed_again() -> None:
    line = Line()
    line.accepted.close(CloseCode.NONE, "bye", line.now)

    line.master.set_keyring(Keyring([OTHER_RUN_KEY]), line.now)

    assert line.accepted.state is State.CLOSING
    assert events_of(line.master) == []


# Forgeries.


@pytest.mark.parametrize("together", [1, VECTOR_PACKETS_MIN])
def test_too_many_forgeries_end_a_connection_and_both_hear_why(
    together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradwire_protocol.security.sealed.FORGERIES_MAX", 8)
    line = Line()
    header = TRANSPORT_HEADER.pack(TRANSPORT, 0, 0, line.accepted.session_id, 99)
    forged = header.ljust(100, b"\0")

    for _ in range(8 // together):
        assert line.accepted.state is State.OPEN
        hand_over(line.master, [forged] * together, "attacker", line.now)
    hand_over(line.master, [forged], "attacker", line.now)
    line.exchange()

    reason = "too many forged packets"
    assert ends(line.master) == [Disconnected(CloseCode.FORGERIES, reason, by_peer=False)]
    assert ends(line.worker) == [Disconnected(CloseCode.FORGERIES, reason, by_peer=True)]


# Epochs.


@pytest.mark.parametrize("size", [100, 100_000])
def test_an_epoch_begins_and_the_key_before_it_is_erased_in_time(size: int) -> None:
    """Where packets come singly, and where they come in trains."""
    line = Line()
    line.wait(1.0)
    go_on_from(line.dialled, EPOCH - 1)

    for number in range(2):
        line.dialled.send(0, number, 1, bytes(size), Priority.UPDATE)
        line.exchange()
    counted = line.master.counters.epochs_begun
    keys = keys_of(line.accepted)
    kept = keys.cipher(EPOCH - 1)
    line.wait(3 * line.accepted.sender.recovery.probe_timeout + 0.01)

    assert counted == 1
    assert kept is not None
    assert keys.cipher(EPOCH - 1) is None
    assert line.accepted.state is State.OPEN
    assert drops(line.master) == {}


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
