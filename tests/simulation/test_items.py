"""Items of a work: each is trained on at least once, whoever is lost, the master included.

``pytest tests/simulation/test_items.py -k '[17]'`` shows one history again.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random

import pytest

from gradwire.participant.items import Item, Items, plan_of
from gradwire_server.config import MasterConfig
from gradwire_server.state.work import WorkLedger
from support.network import Link, link_of
from support.simulated_worker import SimulatedWorker
from support.training import SimulatedRun

IDLE_SECONDS = 2.0
INTERVAL = 0.1


class ItemWorker(SimulatedWorker):
    """Trains on items, some steps on each, until all are done."""

    items: Items

    def __init__(self, run: "ItemRun", name: str) -> None:
        self.item: Item | None = None
        self.steps_left = 0
        self.is_over = False
        self._history = run
        super().__init__(run, name, "local")

    def on_live(self) -> None:
        self.items = self.participant.items(self._history.plan)
        self.run.network.after(0, self._ask)

    def _ask(self) -> None:
        if not self.is_gone:
            self._play(self.items.next(), self._begin_item)

    def _begin_item(self, item: Item | None) -> None:
        self.item, self.steps_left = item, self.run.random.randint(1, 3)
        if item is None:
            self.is_over = True
            self.items.end()
        else:
            self._history.begun[item] += 1
            self._later(self._train)

    def _train(self) -> None:
        if self.is_gone:
            return
        if self._procedure is None:
            if not self.steps_left:
                assert self.item is not None
                self._history.finished[self.item] += 1
                self._ask()
                return
            self.steps_left -= 1
            self.step()
        self._later(self._train)

    def _later(self, function: Callable[[], None]) -> None:
        self.run.network.after(INTERVAL * self.run.random.uniform(0.2, 2.0), function)


class ItemRun(SimulatedRun):
    """A run whose workers divide items among themselves."""

    def __init__(self, seed: int, link: Link, *, items: int, epochs: int = 1, **lease: int) -> None:
        super().__init__(
            seed,
            link,
            idle_timeout_seconds=IDLE_SECONDS,
            master=MasterConfig(idle_timeout_seconds=IDLE_SECONDS, recovery_seconds=3.0),
            watches_transport=False,
        )
        self.plan = plan_of(
            "train", items, epochs=epochs, shuffle_seed=seed, **{"lease_seconds": 3_600, **lease}
        )
        self.begun: Counter[Item] = Counter()
        self.finished: Counter[Item] = Counter()
        """By item: how often a worker has trained on it to the end."""

    def start(self, n: int) -> list[ItemWorker]:
        """Let so many workers join."""
        started = [ItemWorker(self, f"items{len(self.workers) + i}") for i in range(n)]
        self.workers += started
        return started

    def all_items(self) -> set[Item]:
        """Return what has to be trained on."""
        return {Item(e, i) for e in range(self.plan.epochs) for i in range(self.plan.items)}

    @property
    def work(self) -> WorkLedger:
        """The ledger of the master."""
        return self.state.works[self.plan.name]

    def train_to_the_end(self, workers: list[ItemWorker]) -> None:
        """Wait until these workers hear that all items are done."""
        self.network.run(
            lambda: all(worker.is_over or worker.is_gone for worker in workers), seconds=600
        )


@pytest.mark.seeds(8)
def test_items_are_divided_and_none_is_trained_on_twice_while_nobody_is_lost(seed: int) -> None:
    random = Random(seed)
    run = ItemRun(seed, link_of(random), items=random.randint(1, 20), epochs=random.randint(1, 3))
    workers = run.start(random.randint(1, 4))

    run.train_to_the_end(workers)

    assert run.finished == run.begun == Counter(run.all_items())
    assert run.work.is_over
    run.finish()


@pytest.mark.seeds(20)
def test_every_item_is_trained_on_though_workers_and_the_master_are_killed(seed: int) -> None:
    random = Random(1_000 + seed)
    run = ItemRun(seed, link_of(random), items=random.randint(10, 30), epochs=2)
    workers = run.start(random.randint(2, 5))
    survivors, lost = workers[1:], workers[:1]
    deaths = [random.uniform(1.0, 6.0) for _ in lost]
    for worker, at in zip(lost, deaths, strict=True):
        run.network.after(at, partial(lambda worker: run.network.kill(worker.host), worker))
    if random.random() < 0.7:
        run.network.after(
            random.uniform(1.0, 8.0),
            partial(run.kill_master, back_after=random.uniform(0.01, 2.0)),
        )
    if random.random() < 0.5:
        run.network.after(random.uniform(1.0, 6.0), lambda: survivors.extend(run.start(1)))

    run.network.run(lambda: all(w.is_over for w in survivors), seconds=900)

    assert set(run.finished) == run.all_items()
    repeated = sum(run.begun.values()) - len(run.begun)
    # A lost worker's item; after a restart, what those who are back held before they said so.
    assert repeated <= len(lost) + (run.masters - 1) * len(run.workers)
    # The others would wait for a worker that is killed while all finish.
    run.network.run(lambda: all(worker.is_gone for worker in lost), seconds=60)
    run.finish()


def test_an_item_that_a_worker_holds_for_too_long_goes_to_another_one() -> None:
    run = ItemRun(1, Link(), items=4, lease_seconds=5)
    slow, *others = run.start(3)
    run.network.run(lambda: slow.item is not None, seconds=10)
    run.network.suspend(slow.host, 12.0)
    slow.steps_left = 200  # it is not lost: it does not come to an end

    run.train_to_the_end(others)

    assert run.begun[slow.item] == 2  # type: ignore[index]
    assert set(run.finished) == run.all_items()


def test_all_hear_that_training_is_to_end_and_so_do_those_that_join_later() -> None:
    run = ItemRun(2, Link(), items=1_000)
    workers = run.start(3)
    run.network.run(lambda: sum(run.finished.values()) > 5, seconds=60)

    run.master.stop_training("it is enough", run.network.now)
    run.turn_master()
    run.train_to_the_end(workers)
    [late] = run.start(1)
    run.train_to_the_end([late])

    assert {w.membership.stop_reason for w in [*workers, late]} == {"it is enough"}
    assert sum(run.finished.values()) < 100
    run.finish()


def test_a_master_that_is_back_hears_from_its_workers_that_training_is_to_end() -> None:
    run = ItemRun(3, Link(), items=1_000)
    workers = run.start(2)
    run.network.run(lambda: sum(run.finished.values()) > 5, seconds=60)
    workers[0]._call(workers[0].worker.stop_training, "the loss is nan")
    run.train_to_the_end(workers)

    run.lose_master(*workers)
    run.wait_until_all_are_back()
    run.network.run(lambda: run.state.stop_reason is not None, seconds=10)

    assert run.state.stop_reason == "the loss is nan"


def test_items_of_later_epochs_are_granted_when_the_operator_says_so() -> None:
    run = ItemRun(4, Link(), items=6, epochs=3)
    workers = run.start(2)
    run.network.run(lambda: sum(run.begun.values()) > 0, seconds=60)
    run.master.pause_items(run.network.now, paused=False, epochs=1)

    run.network.run(lambda: all(worker.is_waiting for worker in workers), seconds=60)
    run.network.run_for(10.0)

    assert {item.epoch for item in run.begun} == {0}
    assert sum(run.finished.values()) == 6
    run.master.pause_items(run.network.now, paused=False)
    run.turn_master()
    run.train_to_the_end(workers)
    assert set(run.finished) == run.all_items()


def test_nobody_is_granted_an_item_while_items_are_paused() -> None:
    run = ItemRun(4, Link(), items=30)
    workers = run.start(2)
    run.network.run(lambda: sum(run.finished.values()) > 3, seconds=60)

    run.master.pause_items(run.network.now, paused=True)
    run.network.run_for(10.0)
    begun = sum(run.begun.values())
    run.network.run_for(10.0)

    assert sum(run.begun.values()) == begun < 30
    assert all(worker.is_waiting for worker in workers)
    run.master.pause_items(run.network.now, paused=False)
    run.turn_master()
    run.train_to_the_end(workers)
    assert set(run.finished) == run.all_items()
