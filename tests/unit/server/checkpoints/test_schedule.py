"""When a run is written: as often as was said, at its end, by order, and only where it has changed.

The decisions alone, with a writer that does as a test says; `tests/simulation/test_checkpoints.py`
has them in a master.
"""

import logging
from typing import Final

import numpy as np
import pytest

from gradwire_codecs import Update
from gradwire_codecs.arrays import Int32Array
from gradwire_protocol import UsageError
from gradwire_protocol.messages.fields import BLOCK_ELEMENTS
from gradwire_protocol.messages.layout import Layout, Tensor
from gradwire_server.checkpoints import schedule
from gradwire_server.checkpoints.schedule import CheckpointSchedule
from gradwire_server.checkpoints.writer import Copy
from gradwire_server.config import MasterConfig
from gradwire_server.metrics import RunMetrics
from gradwire_server.state.leases import Leases
from gradwire_server.state.lobby import Lobby
from gradwire_server.state.run import Leadership, Run
from gradwire_server.state.state import State
from gradwire_server.updates.decoding import InlineDecoder
from support.checkpointing import LAYOUT, VALUES, VERSIONS, ScriptedWriter, checkpoint_of
from support.peer import join_request
from support.wording import naming

SECONDS = 60.0

WIDE: Final[Int32Array] = np.arange(5 * BLOCK_ELEMENTS, dtype=np.int32)
INDEX: Final = np.flatnonzero(WIDE % 5000 == 0).astype(np.uint32)
SPREAD: Final = Update(0, len(WIDE), 1000, INDEX, np.ones(len(INDEX), np.int32))
"""An update with hits in all blocks."""


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


def founded(name: str = "alpha", values: Int32Array = VALUES, layout: Layout = LAYOUT) -> Run:
    checkpoint = checkpoint_of(values, run=name, layout=layout)
    run = Run.resume(checkpoint, memoryview(bytearray(values.astype("<i4").tobytes())))
    run.awaits_workers = False
    return run


@pytest.fixture
def watch() -> Watch:
    return Watch(founded())


# As often as was said.


def test_a_run_is_written_when_the_time_has_come(watch: Watch) -> None:
    watch.pass_time(SECONDS - 1)
    assert watch.copies == []
    watch.pass_time(1)

    [copy] = watch.copies
    assert copy.of is watch.run
    assert copy.replica.values.tolist() == VALUES.tolist()


def test_a_large_run_is_copied_while_updates_change_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "BLOCKS_AT_ONCE", 1)
    watch = Watch(run := founded(values=WIDE, layout=Layout((Tensor("weights", WIDE.shape),))))
    watch.order()

    for _ in range(2):  # and one block more with each update
        assert watch.copies == []
        assert watch.checkpoints.busy
        assert watch.checkpoints.next_timer() == watch.state.now, "the next block is due at once"
        run.apply_update(0, SPREAD)
        run.relay.versions[0] += 1
        watch.checkpoints.conclude()

    [copy] = watch.copies
    assert copy.replica.values.tobytes() == WIDE.tobytes()
    assert copy.versions == VERSIONS
    watch.succeed()
    assert watch.order().startswith("run 'alpha' is being written"), "it has changed since"


def test_a_master_that_stops_copies_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "BLOCKS_AT_ONCE", 1)
    watch = Watch(founded(values=WIDE, layout=Layout((Tensor("weights", WIDE.shape),))))
    watch.order()

    watch.checkpoints.stop(broken=False)

    [copy] = watch.copies
    assert copy.replica.values.tobytes() == WIDE.tobytes()


def test_what_has_not_changed_is_not_written_again(watch: Watch) -> None:
    watch.write_once()

    watch.pass_time(10 * SECONDS)
    assert len(watch.copies) == 1
    watch.accept()
    watch.pass_time(SECONDS)

    assert len(watch.copies) == 2
    assert watch.copies[1].versions == {0: 4, 2: 1}


def test_a_run_that_is_from_a_checkpoint_is_written_when_it_has_changed() -> None:
    run = founded()
    run.last_checkpoint = None
    watch = Watch(run)
    watch.write_once()
    again = Watch(watch.run)

    again.pass_time(10 * SECONDS)

    assert again.copies == []


def test_one_is_written_at_a_time_and_what_comes_meanwhile_waits(watch: Watch) -> None:
    watch.pass_time(SECONDS)
    watch.accept()

    watch.pass_time(10 * SECONDS)
    assert len(watch.copies) == 1, "the disk is slow"
    watch.succeed()
    assert len(watch.copies) == 1, "and is left alone for a while"
    watch.pass_time(SECONDS)

    assert len(watch.copies) == 2


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
    def too_much(run: Run, now: float) -> Copy:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Copy, "begin", too_much)
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


def test_a_run_that_waits_for_its_first_parameters_is_none_yet() -> None:
    watch = Watch(Run.begin("alpha", join_request()))

    watch.pass_time(10 * SECONDS)
    assert watch.copies == []
    watch.run.found()
    watch.checkpoints.conclude()
    watch.pass_time(SECONDS)

    assert len(watch.copies) == 1


def test_where_there_is_no_run_nothing_is_due(watch: Watch) -> None:
    watch.write_once()

    watch.become(None)

    assert watch.checkpoints.next_timer() is None
    assert Watch().checkpoints.next_timer() is None


# At its end.


def test_a_run_that_is_finished_is_written_at_once(watch: Watch) -> None:
    watch.write_once()

    watch.finish_run()

    assert [copy.finished for copy in watch.copies] == [False, True]
    watch.succeed()
    watch.pass_time(10 * SECONDS)
    assert len(watch.copies) == 2


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


def test_the_end_of_a_run_is_written_once_although_it_is_over_before_that_is_done(
    watch: Watch,
) -> None:
    watch.finish_run()
    watch.become(None)
    watch.succeed()

    assert len(watch.copies) == 1
    assert watch.checkpoints.next_timer() is None


def test_a_run_whose_place_another_takes_is_written_first(watch: Watch) -> None:
    before, after = watch.run, founded("beta")

    watch.become(after)
    assert [copy.of for copy in watch.copies] == [before]
    watch.succeed()

    assert [copy.of for copy in watch.copies] == [before, after], "and then the other one"


def test_the_end_of_a_run_that_cannot_be_written_is_tried_again(watch: Watch) -> None:
    before = watch.run
    watch.become(None)
    watch.fail()

    assert watch.checkpoints.next_timer() == SECONDS
    watch.write_once()

    assert [copy.of for copy in watch.copies] == [before, before]


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


# By order.


def test_an_order_has_it_written_at_once_and_says_so(watch: Watch) -> None:
    said = watch.order()

    assert said == naming("alpha", "4 updates", "status")
    assert watch.checkpoints.status() == {"file": None, "updates": None, "writing": True}
    watch.succeed()
    assert watch.checkpoints.status() == {
        "file": "alpha-000001.safetensors",
        "updates": 4,
        "writing": False,
    }


def test_an_order_that_comes_while_one_is_written_has_another_written(watch: Watch) -> None:
    watch.order()
    watch.accept()

    assert watch.order() == naming("5 updates", "after")
    watch.succeed()

    assert [sum(copy.versions.values()) for copy in watch.copies] == [4, 5]


def test_an_order_for_what_is_written_already_says_where(watch: Watch) -> None:
    watch.order()
    watch.succeed()

    assert watch.order() == naming("nothing", "alpha-000001.safetensors")
    assert len(watch.copies) == 1


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


def test_a_master_that_stops_has_what_has_changed_written(watch: Watch) -> None:
    watch.checkpoints.stop(broken=False)
    assert watch.checkpoints.busy
    watch.succeed()

    assert len(watch.copies) == 1
    assert not watch.checkpoints.busy


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


def test_a_master_that_stops_with_nothing_new_writes_nothing(watch: Watch) -> None:
    watch.write_once()

    watch.checkpoints.stop(broken=False)

    assert (len(watch.copies), watch.checkpoints.busy) == (1, False)


def test_a_master_that_fails_writes_nothing_that_may_be_wrong(watch: Watch) -> None:
    watch.pass_time(SECONDS)
    watch.accept()

    watch.checkpoints.stop(broken=True)
    watch.succeed()

    assert (len(watch.copies), watch.checkpoints.busy) == (1, False)
