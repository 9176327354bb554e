"""How busy a master and its runs are, from what is counted anyway."""

import math
from mmap import PAGESIZE, mmap

import numpy as np
import pytest

from gradwire_protocol.messages.admission import Welcome
from gradwire_protocol.messages.updates import Leave
from gradwire_server.runs.figures import SECONDS_MAX, Figures, resident_bytes
from gradwire_server.series.board import Curve
from support.simulated_daemon import Daemon
from support.tiers import count


class Busy:
    """A daemon whose figures are taken, and what its process is said to have used."""

    def __init__(self) -> None:
        self.daemon = Daemon()
        self.received, self.sent = 0, 0
        self.processor_seconds, self.memory_bytes = 5.0, 1e8
        self.now = self.daemon.network.now
        self.figures = Figures(
            self.daemon.runs,
            lambda: (self.received, self.sent),
            self.now,
            processor_seconds=lambda: self.processor_seconds,
            memory_bytes=lambda: self.memory_bytes,
        )

    def sample(self, seconds: float = 1.0) -> None:
        """Take figures so many seconds after the last ones."""
        self.now += seconds
        self.figures.sample(self.now)

    def curve(self, name: str, run: str | None = None) -> Curve:
        found = self.figures.curve(f"master/{name}", run)
        assert found is not None
        return found


def test_the_process_has_rates_over_the_time_since_the_last_sample() -> None:
    busy = Busy()
    busy.received, busy.sent, busy.processor_seconds = 3_000, 500, 5.5

    busy.sample(2.0)

    assert busy.figures.newest() == pytest.approx(
        {
            "processor_ratio": 0.25,
            "memory_bytes": 1e8,
            "received_bytes_per_second": 1_500.0,
            "sent_bytes_per_second": 250.0,
        }
    )
    busy.sample(0.5)
    assert busy.figures.newest()["received_bytes_per_second"] == 0.0
    assert busy.curve("received_bytes_per_second").mean.tolist() == [750.0]
    assert busy.curve("received_bytes_per_second").high.tolist() == [1_500.0]


def test_a_run_has_rates_and_means_of_the_time_since_the_last_sample() -> None:
    busy = Busy()
    alpha = busy.daemon.enter("a", "alpha")
    other = busy.daemon.enter("b", "alpha")
    busy.daemon.train(alpha)
    assert busy.figures.newest("alpha") == {}, "what was before the first look is not known"
    busy.sample()
    busy.daemon.train(alpha, other, alpha)
    busy.daemon.until(lambda: len(other.updates) == 3)

    busy.sample(0.5)

    found = busy.figures.newest("alpha")
    state = busy.daemon.runs.in_progress["alpha"].state
    size = state.metrics.registry.get_sample_value("gradwire_update_bytes_sum")
    assert size is not None
    assert found["workers"] == 2.0
    assert found["updates_per_second"] == 6.0
    assert found["update_bytes_per_second"] == pytest.approx(size / 4 * 6)
    assert found["density_ratio"] == pytest.approx(1 / 6)
    assert found["staleness_updates"] >= 0.0
    assert busy.figures.newest("beta") == {}


def test_a_mean_of_nothing_is_left_out_and_not_nought() -> None:
    busy = Busy()
    alpha = busy.daemon.enter("a", "alpha")
    busy.sample()
    busy.daemon.train(alpha)
    busy.sample()
    busy.sample()

    assert "density_ratio" not in busy.figures.newest("alpha")
    assert busy.figures.newest("alpha")["updates_per_second"] == 0.0
    assert len(busy.curve("density_ratio", "alpha").step) == 1
    assert len(busy.curve("updates_per_second", "alpha").step) == 2


def test_names_and_curves_are_those_that_there_are() -> None:
    busy = Busy()
    assert (busy.figures.names(), busy.figures.names("alpha")) == ([], [])
    busy.daemon.enter("a", "alpha")
    busy.sample()
    busy.sample()

    assert busy.figures.names() == [
        "master/memory_bytes",
        "master/processor_ratio",
        "master/received_bytes_per_second",
        "master/sent_bytes_per_second",
    ]
    assert "master/workers" in busy.figures.names("alpha")
    assert busy.figures.curve("master/nothing") is None
    assert busy.figures.curve("master/workers", "beta") is None
    assert busy.figures.curve("workers", "alpha") is None


def test_a_run_that_is_over_takes_its_figures_along() -> None:
    busy = Busy()
    alpha = busy.daemon.enter("a", "alpha")
    for _ in range(2):
        busy.sample()
    busy.daemon.finish(alpha, 0)

    busy.sample()

    assert busy.figures.newest("alpha") == {}
    assert busy.figures.names("alpha") == []


def test_the_next_run_of_a_name_begins_without_figures_and_with_no_rate_below_nought() -> None:
    busy = Busy()
    alpha = busy.daemon.enter("a", "alpha")
    busy.sample()
    busy.daemon.train(alpha, alpha, alpha)
    busy.sample()
    assert busy.figures.newest("alpha")["updates_per_second"] == 3.0
    [welcome] = alpha.all(Welcome)
    alpha.say(Leave(3, "done"))
    alpha.wait_for_end()
    busy.daemon.order("end-run", run="alpha")
    again = busy.daemon.enter("b", "alpha")
    assert again.all(Welcome)[0].founder
    assert welcome.run == "alpha"

    busy.sample()
    first = dict(busy.figures.newest("alpha"))
    busy.daemon.train(again)
    busy.sample()

    assert first == {}
    assert busy.figures.newest("alpha")["updates_per_second"] == 1.0
    assert len(busy.curve("updates_per_second", "alpha").step) == 1


def test_a_clock_that_stands_still_divides_by_no_nought() -> None:
    busy = Busy()
    busy.received = 10
    busy.sample(0.0)

    assert all(map(math.isfinite, busy.figures.newest().values()))


def test_the_whole_life_of_a_master_is_kept_in_bounded_memory() -> None:
    busy = Busy()
    busy.daemon.enter("a", "alpha")
    samples = count(3 * SECONDS_MAX, quick=SECONDS_MAX + 500, of="seconds of a master")
    for _ in range(samples + 1):
        busy.sample()

    for curve in (busy.curve("memory_bytes"), busy.curve("workers", "alpha")):
        assert len(curve.step) <= SECONDS_MAX
        assert int(curve.count.sum()) == samples + (1 if curve.mean[0] == 1e8 else 0)
        assert curve.step[-1] + curve.steps >= samples
        assert np.all(np.diff(curve.seconds) > 0)
    cells = sum(kept.board.cells for kept in busy.figures._of_runs.values())
    assert cells <= 10 * SECONDS_MAX


def test_seconds_count_from_the_start_of_the_master() -> None:
    busy = Busy()
    for _ in range(3):
        busy.sample(1.5)

    assert busy.figures.began == busy.now - 4.5
    assert busy.curve("memory_bytes").seconds.tolist() == pytest.approx([1.5, 3.0, 4.5])
    assert busy.curve("memory_bytes").step.tolist() == [1, 3, 4]


def test_memory_is_that_of_this_process() -> None:
    before = resident_bytes()
    with mmap(-1, 2**26) as block:  # the C library may have kept as much as an array takes
        block[::PAGESIZE] = bytes(len(block) // PAGESIZE)

        assert resident_bytes() - before > len(block) / 2
