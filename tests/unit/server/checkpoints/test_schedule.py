"""When a run is written: as often as was said, at its end, by order, and only where it has changed.

The decisions alone, with a writer that does as a test says; `tests/simulation/test_checkpoints.py`
has them in a master.
"""

import logging

import pytest

from gradwire_protocol import UsageError
from gradwire_server.checkpoints.schedule import CheckpointSchedule
from gradwire_server.checkpoints.writer import Copy
from gradwire_server.config import MasterConfig
from gradwire_server.metrics import RunMetrics
from gradwire_server.state.buffer_feed import RankBuffers
from gradwire_server.state.leases import Leases
from gradwire_server.state.lobby import Lobby
from gradwire_server.state.run import Leadership, Run
from gradwire_server.state.state import State
from gradwire_server.updates.decoding import InlineDecoder
from support.checkpointing import VALUES, ScriptedWriter, checkpoint_of
from support.peer import join_request
from support.wording import naming

SECONDS = 60.0


class Watch:
    """A master's state, its checkpoints, and a clock."""

    def __init__(self, run: Run | None = None) -> None:
        config = MasterConfig(checkpoint_seconds=SECONDS)
        self.metrics = RunMetrics()
        self.state = State(
            leadership=Leadership(),
            config=config,
            metrics=self.metrics,
            decoder=InlineDecoder(),
            lobby=Lobby(10.0),
            leases=Leases(600.0, 8),
            new_run=False,
            run=run,
        )
        self.writer = ScriptedWriter()
        self.checkpoints = CheckpointSchedule(self.state, self.writer)
        self.checkpoints.conclude()

    @property
    def run(self) -> Run:
        assert self.state.run is not None
        return self.state.run

    @property
    def copies(self) -> list[Copy]:
        return self.writer.copies

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and call when it was asked for."""
        end = self.state.now + seconds
        while (due := self.checkpoints.next_timer()) is not None and due <= end:
            assert due > self.state.now, "it is called for ever at the same time"
            self.state.now = due
            self.checkpoints.conclude()
        self.state.now = end

    def accept(self, rank: int = 0) -> None:
        """Let an update be accepted."""
        self.run.replica.values[0] += 1
        self.run.relay.versions[rank] = self.run.relay.versions.get(rank, 0) + 1
        self.checkpoints.conclude()

    def write_once(self) -> None:
        """Let time pass until the run is written, and its writing succeed."""
        self.pass_time(SECONDS)
        self.succeed()

    def finish_run(self) -> None:
        self.run.finished = True
        self.checkpoints.conclude()

    def order(self) -> str:
        """Let an operator order a checkpoint; return the answer."""
        said = self.checkpoints.ask()
        self.checkpoints.conclude()
        return said

    def succeed(self, complaint: str = "") -> None:
        self.writer.succeed(complaint)
        self.checkpoints.conclude()

    def fail(self) -> None:
        self.writer.fail()
        self.checkpoints.conclude()

    def become(self, run: Run | None) -> None:
        self.state.run = run
        self.checkpoints.conclude()

    def sample(self, name: str) -> float:
        return self.metrics.registry.get_sample_value(f"gradwire_checkpoint{name}") or 0.0


def founded(name: str = "alpha") -> Run:
    run = Run.resume(checkpoint_of(run=name), memoryview(bytearray(VALUES.astype("<i4").tobytes())))
    run.awaits_workers = False
    return run


@pytest.fixture
def watch() -> Watch:
    return Watch(founded())


# As often as was said.


def test_what_cannot_be_written_is_counted_and_tried_again(
    watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    watch.pass_time(SECONDS)
    watch.fail()

    watch.pass_time(SECONDS - 1)
    assert len(watch.copies) == 1
    watch.pass_time(1)
    watch.succeed()

    assert len(watch.copies) == 2
    assert watch.sample("s_failed_total") == 1
    assert watch.sample("s_written_total") == 1
    assert caplog.messages == [naming("alpha", "No space left on device", "again", "60 s")]


def test_where_there_is_no_memory_for_a_copy_the_run_goes_on(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def too_much(run: Run) -> Copy:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Copy, "make", too_much)
        watch.pass_time(SECONDS)
    watch.pass_time(SECONDS)

    assert naming("alpha", "memory") in caplog.messages
    assert watch.sample("s_failed_total") == 1
    assert len(watch.copies) == 1


def test_metrics_and_log_tell_of_what_was_written(
    watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    watch.pass_time(SECONDS)
    with caplog.at_level(logging.INFO, "gradwire.master"):
        watch.succeed("cannot remove alpha-000000.safetensors: Permission denied")

    assert watch.sample("s_written_total") == 1
    assert watch.sample("_bytes") == 1_000
    assert watch.sample("_duration_seconds") == 2.0
    assert watch.sample("_timestamp_seconds") == 3e9
    assert caplog.messages == [
        naming("alpha", "4 updates", "alpha-000001.safetensors", "1000 bytes", "2.0 s"),
        naming("cannot remove alpha-000000.safetensors: Permission denied"),
    ]


# At its end.


def test_the_end_of_a_run_is_written_although_everybody_has_left_meanwhile(watch: Watch) -> None:
    watch.pass_time(SECONDS)
    watch.accept()
    watch.finish_run()
    over = watch.run

    watch.become(None)
    watch.succeed()

    assert [copy.of for copy in watch.copies] == [over, over]
    assert [copy.finished for copy in watch.copies] == [False, True]
    watch.succeed()
    assert not watch.checkpoints.busy
    assert watch.checkpoints.next_timer() is None


def test_of_runs_that_are_over_and_cannot_be_written_the_last_is_kept(
    watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = watch.run, founded("beta")
    watch.become(second)
    watch.become(None)
    watch.fail()
    watch.write_once()

    assert [copy.of for copy in watch.copies] == [first, second]
    assert naming("no checkpoint", "alpha", "beta") in caplog.messages
    assert watch.sample("s_failed_total") == 2


def test_an_order_that_comes_while_one_is_written_has_another_written(watch: Watch) -> None:
    watch.order()
    watch.accept()

    assert watch.order() == naming("5 updates", "after")
    watch.succeed()

    assert [sum(copy.versions.values()) for copy in watch.copies] == [4, 5]


def test_a_run_of_which_the_buffers_alone_have_changed_is_written(watch: Watch) -> None:
    watch.write_once()
    watch.run.buffers[0] = RankBuffers(b"other ones", final=False)

    watch.write_once()
    watch.pass_time(SECONDS)

    assert [copy.buffers for copy in watch.copies] == [(), (b"other ones",)]


def test_an_order_for_what_is_written_already_says_where(watch: Watch) -> None:
    watch.order()
    watch.succeed()

    assert watch.order() == naming("nothing", "alpha-000001.safetensors")
    assert len(watch.copies) == 1


# By order.


def test_an_order_is_refused_where_there_is_no_run_or_no_folder(watch: Watch) -> None:
    nothing = naming("no run")
    with pytest.raises(UsageError, match=nothing):
        Watch().checkpoints.ask()
    with pytest.raises(UsageError, match=nothing):
        Watch(Run.begin("alpha", join_request())).checkpoints.ask()

    nowhere = CheckpointSchedule(watch.state, None)
    with pytest.raises(UsageError, match=naming("--checkpoint DIR")):
        nowhere.ask()
    assert nowhere.status() is None
    nowhere.conclude()
    nowhere.stop(broken=False)
    assert (nowhere.next_timer(), nowhere.busy) == (None, False)


# When the master stops.


def test_a_master_that_stops_while_one_is_written_has_the_rest_written_after_it(
    watch: Watch,
) -> None:
    watch.pass_time(SECONDS)
    watch.accept()
    watch.checkpoints.stop(broken=False)
    watch.succeed()
    assert watch.checkpoints.busy
    watch.fail()

    assert [sum(copy.versions.values()) for copy in watch.copies] == [4, 5]
    assert not watch.checkpoints.busy, "nobody waits for a disk that is full"


def test_a_master_that_fails_writes_nothing_that_may_be_wrong(watch: Watch) -> None:
    watch.pass_time(SECONDS)
    watch.accept()

    watch.checkpoints.stop(broken=True)
    watch.succeed()

    assert (len(watch.copies), watch.checkpoints.busy) == (1, False)
