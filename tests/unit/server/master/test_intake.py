"""The intake: only what fits the run gets in, no worker floods it, and a quarantine can end.

Whole runs with a broken worker are in `tests/simulation`; here a scripted peer joins a simulated
run and sends one update after the other.
"""

import inspect
import logging
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_codecs import Replica, Update
from gradwire_codecs.format.header import pack_number
from gradwire_codecs.format.update import pack_update
from gradwire_codecs.replica.replica import FIRST_VALUE_MAX
from gradwire_protocol import CloseCode, UsageError
from gradwire_protocol.messages.admission import Roster, Welcome
from gradwire_protocol.messages.kinds import EndCode
from gradwire_protocol.messages.link import EntriesReceived
from gradwire_protocol.messages.modes.mode import SYNCHRONOUS, Mode
from gradwire_protocol.messages.replicas import Snapshot
from gradwire_protocol.messages.updates import Finish, Finished, Leave
from gradwire_server.config import MasterConfig
from gradwire_server.master import intake
from gradwire_server.updates.decoding import Decoded, InlineDecoder
from gradwire_server.updates.update_rate import BURST_UPDATES_MIN
from gradwire_server.updates.vetting import NORMS_MIN
from support.peer import ScriptedPeer, said_by_peer
from support.training import SimulatedRun
from support.wording import naming

ELEMENTS = 40
STEPS = NORMS_MIN + 4
"""Steps of the others until they are a reference; a step need not reach a threshold."""


def body_of(value: int, *, element: int = 0, multiple: int = 1000) -> bytes:
    """Return an encoded update that changes one element by so many thousand quanta."""
    index, count = np.array([element], np.uint32), np.array([value], np.int32)
    return pack_update(Update(0, ELEMENTS, multiple, index, count))


HARMLESS = body_of(1)
OUTLIER = body_of(500_000)


@pytest.fixture(autouse=True)
def few_workers_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a worker be put into quarantine among two or three."""
    monkeypatch.setattr(intake, "WORKERS_MIN", 1)


def run_with(workers: int, **settings: object) -> SimulatedRun:
    """Return a run whose workers have trained long enough to be a reference."""
    config = MasterConfig(**{"outliers": "quarantine", **settings})  # type: ignore[arg-type]
    run = SimulatedRun(elements=ELEMENTS, master=config)
    run.join_and_wait(workers)
    run.train(STEPS)
    run.network.run_for(5.0)
    return run


def rogue_in(run: SimulatedRun, name: str = "rogue", rank: int | None = None) -> ScriptedPeer:
    """Return a peer that has joined the run like any worker, and has its snapshot."""
    rogue = run.enter(name, rank=rank)
    rogue.wait_for(Snapshot)
    run.network.run_for(1.0)
    return rogue


def digest_of(run: SimulatedRun) -> int:
    return run.state.replica.digest()


def say_and_wait(run: SimulatedRun, rogue: ScriptedPeer, *bodies: bytes, first: int = 1) -> None:
    rank = rogue.all(Welcome)[0].rank
    for sequence, body in enumerate(bodies, first):
        run.ledger.updates.setdefault((rank, sequence), body)
        run.ledger.encoders.setdefault((rank, sequence), rogue.host.address)
        rogue.say_update(rank, sequence, body)
    run.network.run_for(1.0)


# What does not fit the run.


def harmless_but_for(**fields: int) -> bytes:
    """Return an update with other fields in its header."""
    usual = {
        "format": 1,
        "start": 0,
        "length": ELEMENTS,
        "multiple": 1000,
        "hits": 1,
    }
    return b"".join(map(pack_number, (usual | fields).values())) + HARMLESS[-1:]


assert harmless_but_for() == HARMLESS


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (HARMLESS[:3], ("header", "cut off")),
        (HARMLESS + b"\x00", ("8 bytes", "1 hits")),
        (harmless_but_for(length=ELEMENTS + 1), ("elements", 0, 41, 40)),
        (harmless_but_for(start=1), ("elements", 1, 41, 40)),
        (harmless_but_for(length=0), ("no elements", 0)),
        (harmless_but_for(length=3, hits=4), ("4 hits", 0, 3)),
        (harmless_but_for(hits=ELEMENTS), ("40 hits", "7 bytes")),
        (harmless_but_for(hits=0), ("0 hits", "7 bytes")),
        (harmless_but_for(hits=2), ("2 hits", "7 bytes")),
        (harmless_but_for(multiple=0), ("multiple", 0, 1, 2**24)),
        (harmless_but_for(multiple=2**24 + 1), ("multiple", 2**24 + 1, 1, 2**24)),
        (struct.pack("<f", float("nan")) * 10, ("format", 0)),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_an_update_that_does_not_fit_changes_nothing_and_ends_the_connection(
    body: bytes, named: tuple[object, ...]
) -> None:
    run = run_with(2)
    rogue, before = rogue_in(run), digest_of(run)

    say_and_wait(run, rogue, body, HARMLESS)

    end = rogue.wait_for_end()
    assert end.code == EndCode.MALFORMED_UPDATE
    assert end.reason == naming(*named)
    assert run.sample("updates_malformed_total") == 1
    assert run.sample("messages_invalid_total") == 0
    assert run.sample("leaves_total", reason="fault") == 1
    assert run.state.relay.versions.get(2, 0) == 0
    assert digest_of(run) == before
    run.finish()


@given(body=st.binary(max_size=60))
def test_bytes_that_are_no_update_never_reach_the_replica(body: bytes) -> None:
    """Whatever they are: either they decode to integers in range, or the connection ends."""
    run = SimulatedRun(elements=ELEMENTS)
    run.join_and_wait(1)
    rogue, before = rogue_in(run), digest_of(run)

    if body:
        say_and_wait(run, rogue, body)

    if rogue.ended is not None:
        assert rogue.ended.code == EndCode.MALFORMED_UPDATE
        assert digest_of(run) == before


@pytest.mark.parametrize("policy", ["warn", "quarantine", "off"])
@pytest.mark.parametrize("sign", [1, -1])
def test_an_update_that_leaves_the_range_of_the_replica_ends_the_connection(
    policy: str, sign: int
) -> None:
    run = SimulatedRun(elements=ELEMENTS, master=MasterConfig(outliers=policy))  # type: ignore[arg-type]
    run.join_and_wait(1)  # alone, it is no reference, so nothing is out of proportion
    rogue = rogue_in(run)
    largest = body_of(sign * 1536, multiple=2**20)

    say_and_wait(run, rogue, largest)
    before = digest_of(run)
    say_and_wait(run, rogue, largest, HARMLESS, first=2)

    end = rogue.wait_for_end()
    assert end.code == EndCode.DIVERGED
    assert end.reason == naming("weights[0]", 128)
    assert digest_of(run) == before
    assert run.sample("updates_accepted_total") == 1


@pytest.mark.parametrize(
    ("start", "value", "named"),
    [
        *(
            (0, value, (value, FIRST_VALUE_MAX, "larger quantum"))
            for value in (FIRST_VALUE_MAX + 1, -FIRST_VALUE_MAX - 1, -(2**31))
        ),
        (1, 0, ("Snapshot", f"{4 * ELEMENTS} bytes", 1, ELEMENTS)),
    ],
)
def test_first_parameters_that_do_not_fit_or_could_not_grow_end_the_connection(
    start: int, value: int, named: tuple[object, ...]
) -> None:
    run = SimulatedRun(elements=ELEMENTS)
    founder = run.enter()
    values = np.zeros(ELEMENTS, np.int32)
    values[7] = value

    founder.say_block(start, values)

    assert founder.wait_for_end() == said_by_peer(CloseCode.INVALID_MESSAGE, naming(*named))
    assert run.master.run is None


def test_the_largest_first_parameters_that_a_worker_makes_are_taken() -> None:
    run = SimulatedRun(elements=2)
    founder = run.enter("founder")
    limit = np.float32(2**31 * 2.0**-24 / 16)
    largest = np.array([1, -1], np.float32) * np.nextafter(limit, np.float32(0))

    founder.say_block(0, Replica.from_parameters(largest).values)
    run.network.run_for(1.0)

    assert founder.ended is None
    assert run.state.founded


# What a worker says of versions.


def test_a_worker_moves_no_version_but_its_own() -> None:
    run = run_with(2)
    rogue = rogue_in(run)
    before = dict(run.state.relay.versions)

    say_and_wait(run, rogue, HARMLESS, HARMLESS)
    rogue.say(Finish(2))
    run.network.run_for(1.0)

    assert run.state.relay.versions == {**before, 2: 2}
    assert rogue.ended is None


@pytest.mark.parametrize(
    ("mode", "closes", "words"),
    [
        (None, {0: 5}, ("contributes", "round")),
        (Mode(SYNCHRONOUS), {0: 5}, ("update 1", "rank 2", "closes")),
        (Mode(SYNCHRONOUS), {2: 2}, ("update 1", "rank 2", "closes")),
    ],
)
def test_a_worker_closes_nothing_but_its_own_contribution(
    mode: Mode | None, closes: dict[int, int], words: tuple[str, ...]
) -> None:
    run = SimulatedRun(elements=ELEMENTS)
    run.mode = mode
    run.join_and_wait(2)
    rogue = rogue_in(run)
    before = dict(run.state.relay.versions)

    rogue.say_update(2, 1, HARMLESS, closes=closes)

    assert rogue.wait_for_end() == said_by_peer(CloseCode.INVALID_MESSAGE, naming(*words))
    assert run.state.relay.versions == before


def test_an_update_beyond_the_last_one_announced_ends_the_connection() -> None:
    run = run_with(2)
    rogue = rogue_in(run)
    rogue.say(Finish(1))

    say_and_wait(run, rogue, HARMLESS, HARMLESS)

    assert rogue.wait_for_end() == said_by_peer(
        CloseCode.INVALID_MESSAGE, naming("rank 2 (rogue)", "update 2", "last", 1)
    )
    assert run.state.relay.versions[2] == 1


# Rate.


def test_more_than_the_rate_waits_in_order_and_nothing_is_lost() -> None:
    run = run_with(2, update_rate_max=10.0)
    rogue = rogue_in(run)
    updates = 3 * BURST_UPDATES_MIN
    relay, began = run.state.relay, run.network.now
    seconds = 2 * BURST_UPDATES_MIN / 10.0

    for sequence in range(1, updates + 1):
        rogue.say_update(2, sequence, HARMLESS)
    run.network.run_for(1.0)
    at_once = relay.versions[2]
    run.network.run(lambda: relay.versions[2] == updates, seconds=seconds + 5.0)

    assert BURST_UPDATES_MIN <= at_once <= BURST_UPDATES_MIN + 10
    assert run.network.now - began == pytest.approx(seconds, abs=0.5)
    assert run.sample("updates_delayed_total") == 2 * BURST_UPDATES_MIN
    assert run.sample("updates_discarded_total") == 0


def test_who_floods_holds_its_own_credit_and_delays_nobody_else() -> None:
    run = run_with(2, update_rate_max=1.0)
    rogue = rogue_in(run)

    say_and_wait(run, rogue, *[HARMLESS] * 500)
    held = bytes_held(run)
    other = rogue_in(run, "other")
    say_and_wait(run, other, HARMLESS)

    assert held[2] >= 400 * len(HARMLESS)
    assert (held[0], held[1]) == (0, 0)
    assert run.state.relay.versions[3] == 1


def test_what_waits_for_the_rate_of_a_worker_that_is_gone_is_counted() -> None:
    run = run_with(2, update_rate_max=1.0)
    rogue = rogue_in(run)
    say_and_wait(run, rogue, *[HARMLESS] * (BURST_UPDATES_MIN + 11))

    rogue.end(EndCode.ABORTED, "out of memory")
    run.network.run_for(1.0)

    accepted = run.state.relay.versions[2]
    assert run.sample("updates_discarded_total") == BURST_UPDATES_MIN + 11 - accepted > 0
    run.finish()


# Quarantine.


def in_quarantine(run: SimulatedRun) -> ScriptedPeer:
    """Return a peer whose second update has put it in quarantine, with three kept aside."""
    rogue = rogue_in(run)
    say_and_wait(run, rogue, HARMLESS, OUTLIER, HARMLESS, HARMLESS)
    return rogue


def bytes_held(run: SimulatedRun) -> dict[int, int]:
    """Return by rank the credit that a worker has used up."""
    return {m.rank: m.link.connection.bytes_held for m in run.master.roster}


def test_from_an_outlier_on_everything_of_its_worker_is_kept_aside_and_it_hears_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = run_with(2)

    with caplog.at_level(logging.WARNING, "gradwire.master"):
        rogue = in_quarantine(run)

    assert run.state.relay.versions[2] == 1
    assert rogue.ended is None
    assert run.sample("quarantined_workers") == 1
    assert run.sample("updates_quarantined_total") == 3
    [line] = caplog.messages
    assert line == naming("update 2", "rank 2 (rogue)", "5e+08")
    held = bytes_held(run)
    assert held.pop(2) >= len(OUTLIER) + 2 * len(HARMLESS), "at its own credit"
    assert held == {0: 0, 1: 0}

    before = len(rogue.all(EntriesReceived))
    run.train(2)
    run.network.run_for(1.0)
    assert len(rogue.all(EntriesReceived)) > before


def test_released_its_updates_are_accepted_in_order_and_what_comes_after_too() -> None:
    run = run_with(2)
    rogue = in_quarantine(run)
    values = run.state.replica.values.copy()

    run.master.release(2, run.network.now)
    run.turn_master()
    say_and_wait(run, rogue, OUTLIER, first=5)

    assert run.state.relay.versions[2] == 5
    assert run.state.replica.values[0] - values[0] == 2 * 500_000_000 + 2_000
    assert run.sample("quarantined_workers") == 0
    assert run.sample("updates_quarantined_total") == 3
    assert run.sample("updates_discarded_total") == 0


def test_what_waited_for_its_rate_comes_after_what_was_aside() -> None:
    run = run_with(2, update_rate_max=5.0)
    rogue = rogue_in(run)
    updates = [HARMLESS, OUTLIER, *[HARMLESS] * (BURST_UPDATES_MIN + 20)]
    say_and_wait(run, rogue, *updates)

    run.master.release(2, run.network.now)
    run.turn_master()
    run.network.run_for(60.0)

    assert run.state.relay.versions[2] == len(updates)
    assert rogue.ended is None


@pytest.mark.parametrize("rank", [0, 2, 7])
def test_who_is_not_in_quarantine_is_not_released(rank: int) -> None:
    run = run_with(2)
    rogue_in(run)

    with pytest.raises(UsageError, match=naming(f"rank {rank}", "quarantine")):
        run.master.release(rank, run.network.now)
    assert len(run.master.roster) == 3


class HeldDecoder(InlineDecoder):
    """Decodes at once, or, while it is held, when it is asked for what is done."""

    def __init__(self) -> None:
        self.held = False
        self._waiting: list[tuple[int, Callable[[], None]]] = []

    def decode(
        self, origin: int, body: bytes, elements: int, done: Callable[[Decoded], None]
    ) -> None:
        decode = partial(super().decode, origin, body, elements, done)
        if self.held:
            self._waiting.append((origin, decode))
        else:
            decode()

    def deliver(self) -> None:
        self.drain()

    def drain(self, origin: int | None = None) -> None:
        while (place := self._place_of(origin)) is not None:
            _, decode = self._waiting.pop(place)
            decode()

    def _place_of(self, origin: int | None) -> int | None:
        places = (i for i, (o, _) in enumerate(self._waiting) if origin in (None, o))
        return next(places, None)


def held_run(workers: int) -> tuple[SimulatedRun, HeldDecoder]:
    """Return a run whose workers are a reference, and what its master decodes with."""
    decoder = HeldDecoder()
    run = SimulatedRun(
        elements=ELEMENTS, decoder=decoder, master=MasterConfig(outliers="quarantine")
    )
    run.join_and_wait(workers)
    run.train(STEPS)
    run.network.run_for(5.0)
    return run, decoder


FRAMES_MAX = 100
"""Calls within one another that handling one event may take."""


@contextmanager
def shallow_stack() -> Iterator[None]:
    """Have calls fail that go deeper than `FRAMES_MAX`."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + FRAMES_MAX)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def test_what_is_being_decoded_at_the_release_keeps_its_place() -> None:
    run, decoder = held_run(2)
    rogue = rogue_in(run)
    decoder.held = True
    say_and_wait(run, rogue, HARMLESS, OUTLIER, HARMLESS)
    run.master.handle_decoded(run.network.now)
    assert run.sample("updates_quarantined_total") == 2
    say_and_wait(run, rogue, HARMLESS, HARMLESS, first=4)

    run.master.release(2, run.network.now)
    run.master.handle_decoded(run.network.now)
    run.turn_master()

    assert run.state.relay.versions[2] == 5
    assert rogue.ended is None


def test_any_number_of_workers_may_leave_with_updates_that_are_being_decoded() -> None:
    run, decoder = held_run(2)
    rogues = [rogue_in(run, f"rogue{i}") for i in range(54)]
    decoder.held = True
    for rogue in rogues:
        rank = rogue.all(Welcome)[0].rank
        for sequence in range(1, 4):
            rogue.say_update(rank, sequence, HARMLESS)
        rogue.say(Leave(3, "enough"))
    run.network.run_for(5.0)

    with shallow_stack():
        run.master.handle_decoded(run.network.now)
    run.turn_master()

    assert {rogue.wait_for_end().code for rogue in rogues} == {EndCode.LEFT}
    versions = run.state.relay.versions
    assert [versions[rogue.all(Welcome)[0].rank] for rogue in rogues] == [3] * len(rogues)
    assert len(run.master.roster) == 2


def test_a_release_is_refused_when_what_was_being_decoded_is_no_update() -> None:
    run, decoder = held_run(2)
    rogue = rogue_in(run)
    say_and_wait(run, rogue, OUTLIER)
    decoder.held = True
    say_and_wait(run, rogue, b"nonsense", first=2)

    with pytest.raises(UsageError, match=naming("rank 2", "quarantine")):
        run.master.release(2, run.network.now)
    run.turn_master()

    assert rogue.wait_for_end().code == EndCode.MALFORMED_UPDATE
    decoder.held = False
    run.finish()


def test_a_last_update_before_those_that_are_being_decoded_ends_the_connection() -> None:
    run, decoder = held_run(2)
    rogue = rogue_in(run)
    decoder.held = True
    say_and_wait(run, rogue, HARMLESS, HARMLESS)

    rogue.say(Finish(1))

    assert rogue.wait_for_end() == said_by_peer(
        CloseCode.INVALID_MESSAGE, naming("rank 2 (rogue)", "update 1", "last", "sent 2")
    )
    decoder.held = False
    run.finish()


def test_an_update_beyond_the_last_one_that_waited_for_that_ends_the_connection() -> None:
    run = run_with(2)
    rogue = rogue_in(run)
    rogue.say_update(2, 2, HARMLESS)
    rogue.say(Finish(1))
    run.network.run_for(1.0)

    rogue.say_update(2, 1, HARMLESS)

    assert rogue.wait_for_end() == said_by_peer(
        CloseCode.INVALID_MESSAGE, naming("rank 2 (rogue)", "update 2", "last", 1)
    )
    run.finish()


@pytest.mark.parametrize("first", [Finish(0), Leave(5, "later")], ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("again", [Finish(0), Leave(5, "now")], ids=lambda m: type(m).__name__)
def test_which_update_is_the_last_one_is_said_once(
    first: Finish | Leave, again: Finish | Leave
) -> None:
    run = run_with(2)
    rogue = rogue_in(run)
    rogue.say(first)
    run.network.run_for(1.0)
    told = len(rogue.all(Roster))

    rogue.say(again)
    run.network.run_for(1.0)

    if isinstance(first, Finish) and isinstance(again, Leave):
        assert rogue.ended is None
    else:
        assert rogue.wait_for_end() == said_by_peer(
            CloseCode.INVALID_MESSAGE,
            naming("rank 2 (rogue)", "before", "last"),
        )
    assert len(rogue.all(Roster)) == told


def test_who_leaves_in_quarantine_is_not_waited_for() -> None:
    run = run_with(2)
    rogue = in_quarantine(run)

    rogue.say(Leave(9, "enough"))

    end = rogue.wait_for_end()
    assert end.code == EndCode.QUARANTINED
    assert end.reason == naming("left", "3 updates")
    run.finish()


def test_a_run_that_waits_for_one_worker_ends_when_that_comes_into_quarantine() -> None:
    run = run_with(1)
    one, rogue = rogue_in(run, "one"), rogue_in(run)
    run.workers[0].finish()
    one.say(Finish(0))
    rogue.say(Finish(3))
    run.network.run_for(5.0)
    assert one.all(Finished) == []

    say_and_wait(run, rogue, OUTLIER)

    assert one.wait_for(Finished).versions.get(2, 0) == 0
    assert rogue.wait_for_end().code == EndCode.QUARANTINED


def test_nonsense_from_quarantine_ends_the_connection_all_the_same() -> None:
    run = run_with(2)
    rogue = in_quarantine(run)

    say_and_wait(run, rogue, b"nonsense", first=5)

    assert rogue.wait_for_end().code == EndCode.MALFORMED_UPDATE
    assert run.sample("updates_discarded_total") == 3
    assert run.sample("quarantined_workers") == 0


def test_who_becomes_larger_step_by_step_is_found_out_all_the_same() -> None:
    """Its own updates are no part of what it is compared with."""
    run = run_with(2)
    rogue = rogue_in(run)

    say_and_wait(run, rogue, *[body_of(2**i) for i in range(20)])

    assert run.sample("quarantined_workers") == 1
