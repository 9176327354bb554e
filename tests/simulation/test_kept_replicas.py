"""Relays that keep a replica: workers that join through them get theirs from there.

``pytest tests/simulation/test_kept_replicas.py -k '[17]'`` shows one history again.
"""

from functools import partial
from random import Random

import pytest

from gradwire_codecs import Update
from gradwire_server.intermediary.kept_replica import KeptReplica
from simulation.test_relays import IN_ROUNDS, TREES, faults_of
from support.network import Link, link_of
from support.relayed_run import RelayedRun
from support.tiers import count
from support.training import MASTER

HISTORIES = count(1_000, quick=15, of="histories with relays that keep replicas")
BATCH = 5

ELEMENTS = 2 * 2**18 + 1_000
"""Of three blocks."""


def filled_in(run: RelayedRun) -> int:
    """Return how many blocks the relays that there are now have filled in."""
    kept = [relay.kept for relay in run.relays.values()]
    return sum(each.blocks_filled for each in kept if each is not None)


def join_later(run: RelayedRun, name: str) -> None:
    """Let a worker join at a relay, if that is there."""
    if name in run.linked:
        run.dialled, before = name, run.dialled
        run.join()
        run.dialled = before


def play(seed: int) -> RelayedRun:
    """Play a history of a seed in which workers come one after the other, while others train."""
    random = Random(seed)
    run = RelayedRun(
        seed,
        link_of(random),
        parents=random.choice(TREES),
        elements=random.choice([20, 400]),
        watches_transport=False,
        keeps_replicas=True,
    )
    if seed % BATCH == 0:
        run.mode = IN_ROUNDS
    with run.round_accounts.watching(lambda: run.ledger):
        run.wait_for_relays()
        run.join_at(random.choice([*run.relays]), random.choice([*run.relays, MASTER]))
        for _ in range(random.randint(2, 5)):
            late = random.choice([*run.relays])
            run.network.after(random.uniform(0.0, 4.0), partial(join_later, run, late))
        for _ in range(random.randint(0, 3)):
            run.network.after(random.uniform(0.0, 4.0), random.choice(faults_of(run, random)))
        run.train(15, interval=0.3)
        run.network.run_for(16.0)  # all that is lost is missed, and the last ones have joined
        run.wait_until_all_are_back(seconds=200)
        run.train(5)
        run.finish_all()
    return run


@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(0, HISTORIES, BATCH))
def test_whoever_joins_later_gets_the_same_bits(first: int) -> None:
    filled = 0
    for seed in range(first, first + BATCH):
        filled += filled_in(play(seed))

    assert filled


def begin(parents: tuple[str, ...] = (MASTER,), elements: int = 20) -> RelayedRun:
    """Return a run with a worker at the master, which relays keep replicas of."""
    run = RelayedRun(5, Link(delay=0.005), parents=parents, elements=elements, keeps_replicas=True)
    run.wait_for_relays()
    run.join_at(MASTER)
    return run


def test_the_first_one_brings_the_replica_and_the_others_cost_the_master_nothing() -> None:
    run = begin(elements=ELEMENTS)
    with run.round_accounts.watching(lambda: run.ledger):
        run.train(2)
        run.join_at("relay0")
        assert filled_in(run) == 0
        run.train(2)
        run.join_at("relay0", "relay0")

        assert filled_in(run) == 2 * 3
        run.train(2)
        run.finish_all()


def test_a_relay_behind_a_relay_keeps_its_own() -> None:
    run = begin((MASTER, "relay0"))
    with run.round_accounts.watching(lambda: run.ledger):
        run.join_at("relay0", "relay1")
        run.train(2)
        run.join_at("relay0", "relay1")

        for relay in run.relays.values():
            assert relay.kept is not None
            assert relay.kept.blocks_filled == 1
        run.train(2)
        run.finish_all()


def test_a_relay_that_lost_its_last_peer_begins_again() -> None:
    run = begin()
    with run.round_accounts.watching(lambda: run.ledger):
        [first] = run.join_at("relay0")
        run.network.kill(first.host)
        run.train(3)
        run.network.run_for(10.0)
        kept = run.relays["relay0"].kept
        assert kept is not None
        run.join_at("relay0")
        assert kept.blocks_filled == 0
        run.train(3)
        run.join_at("relay0")

        assert kept.blocks_filled == 1
        run.train(2)
        run.finish_all()


def test_a_bit_that_was_flipped_at_a_relay_reaches_no_worker() -> None:
    run = begin()
    with run.round_accounts.watching(lambda: run.ledger):
        run.join_at("relay0")
        run.train(2)
        kept = run.relays["relay0"].kept
        assert kept is not None
        assert kept._values is not None
        kept._values[7] ^= 1 << 20
        run.join_at("relay0")
        run.train(20)
        run.finish_all()

    assert kept.blocks_filled == 1
    assert run.sample("digest_checks_total") > 0


def no_result_is_added(self: KeptReplica, rank: int, sequence: int, update: Update) -> None:
    if self._versions is not None:
        self._versions[rank] = max(sequence, self._versions.get(rank, 0))


def test_a_history_finds_that_results_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeptReplica, "add", no_result_is_added)

    with pytest.raises(AssertionError):
        play(1)
