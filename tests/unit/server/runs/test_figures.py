"""How busy a master and its runs are, from what is counted anyway."""

from mmap import PAGESIZE, mmap

import pytest

from gradwire_protocol.messages.updates import Leave
from gradwire_server.runs.figures import SECONDS_MAX, Figures, resident_bytes
from gradwire_server.series.board import Curve
from gradwire_server.series.series import Series
from support.simulated_daemon import Daemon


class Busy:
    """A daemon whose figures are taken, and what its process is said to have used."""

    def __init__(self) -> None:
        self.daemon = Daemon()
        self.received, self.sent = 0, 0
        self.processor_seconds = 5.0
        self.now = self.daemon.network.now
        self.figures = Figures(
            self.daemon.runs,
            lambda: (self.received, self.sent),
            self.now,
            processor_seconds=lambda: self.processor_seconds,
            memory_bytes=lambda: 1e8,
        )

    def sample(self, seconds: float = 1.0) -> None:
        """Take figures so many seconds after the last ones."""
        self.now += seconds
        self.figures.sample(self.now)

    def series(self, run: str) -> Series:
        found = self.daemon.runs.in_progress[run].series
        assert found is not None
        return found

    def curve(self, name: str, of: Series | None = None) -> Curve:
        found = self.figures.curve(f"master/{name}", of)
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
    curve = busy.curve("received_bytes_per_second")
    assert (curve.step.tolist(), curve.mean.tolist(), curve.high.tolist()) == (
        [2], [750.0], [1_500.0],
    )  # fmt: skip
    assert curve.seconds.tolist() == [2.5]


def test_a_run_has_rates_and_means_of_the_time_since_the_last_sample() -> None:
    busy = Busy()
    alpha, other = busy.daemon.enter("a", "alpha"), busy.daemon.enter("b", "alpha")
    busy.daemon.train(alpha)
    busy.sample()
    series = busy.series("alpha")
    assert busy.figures.newest(series) == {}, "what was before the first look is not known"
    busy.daemon.train(alpha, other, alpha)

    busy.sample(0.5)

    found = busy.figures.newest(series)
    assert (found["workers"], found["updates_per_second"]) == (2.0, 6.0)
    assert found["density_ratio"] == pytest.approx(1 / 6)
    assert "master/workers" in busy.figures.names(series)
    assert (busy.figures.newest(Series()), busy.figures.names(Series())) == ({}, [])
    busy.sample()
    assert "density_ratio" not in busy.figures.newest(series), "a mean of nothing is left out"
    assert len(busy.curve("density_ratio", series).step) == 1
    assert len(busy.curve("updates_per_second", series).step) == 2


def test_the_next_run_of_a_name_begins_without_figures_and_with_no_rate_below_nought() -> None:
    busy = Busy()
    alpha = busy.daemon.enter("a", "alpha")
    busy.sample()
    busy.daemon.train(alpha, alpha, alpha)
    busy.sample()
    alpha.say(Leave(3, "done"))
    alpha.wait_for_end()
    busy.daemon.order("end-run", run="alpha")
    again = busy.daemon.enter("b", "alpha")

    busy.sample()
    first = dict(busy.figures.newest(busy.series("alpha")))
    busy.daemon.train(again)
    busy.sample()

    assert first == {}
    assert busy.figures.newest(busy.series("alpha"))["updates_per_second"] == 1.0
    series = busy.series("alpha")
    busy.daemon.finish(again, 1)
    busy.sample()
    assert len(busy.curve("updates_per_second", series).step) == 1, "those of a run that is over"


def test_the_whole_life_of_a_master_is_kept_in_bounded_memory() -> None:
    busy = Busy()
    for _ in range(SECONDS_MAX + 500):
        busy.sample()

    curve = busy.curve("memory_bytes")
    assert len(curve.step) <= SECONDS_MAX
    assert int(curve.count.sum()) == SECONDS_MAX + 500


def test_memory_is_that_of_this_process() -> None:
    before = resident_bytes()
    with mmap(-1, 2**26) as block:  # the C library may have kept as much as an array takes
        block[::PAGESIZE] = bytes(len(block) // PAGESIZE)

        assert resident_bytes() - before > len(block) / 2
