"""`CheckpointSchedule`: when a checkpoint of the run is written.

That is every `checkpoint_seconds`, when the run has finished, when another run replaces it, when an
operator orders it and when the master stops; but never when nothing has changed since the last one.

The replica is copied between two events, so that it matches the version vector: half a second for
each GB, at 2 GB/s. Another thread writes the copy (`writer`), however long that takes. There is one
copy at a time, 4 bytes for each parameter; a checkpoint that is due meanwhile is written after it.
With the replica itself that is 8 bytes for each parameter. A run that is over and not yet written
is kept until it is, or until the next one is over too: 4 bytes more for each of its parameters.

A failure is counted, logged, and tried again after `checkpoint_seconds`. The run continues.
"""

import logging
from typing import Any

from gradwire_protocol import UsageError
from gradwire_server.checkpoints.writer import CheckpointWriter, Copy, Failed, Written
from gradwire_server.series.journal import Happening
from gradwire_server.state.run import LastCheckpoint, Run, hash_of
from gradwire_server.state.state import State

logger = logging.getLogger("gradwire.master")


class CheckpointSchedule:
    """Decides when to write checkpoints of a master's run; writes none without a writer."""

    def __init__(self, state: State, writer: CheckpointWriter | None) -> None:
        self._state = state
        self._writer = writer
        self._run: Run | None = None
        """The run in progress, once it has parameters."""
        self._unwritten: Run | None = None
        """A run that is over, and whose last state is not written yet."""
        self._under_way: Copy | None = None
        self._wanted = False
        """Whether to write as soon as possible."""
        self._due: float | None = None
        """When to write next."""
        self._finish_seen = False

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written, or is due."""
        return self._under_way is not None or self._wanted

    def conclude(self) -> None:
        """Do what is due; the master calls this after every event."""
        if self._writer is None:
            return
        if self._under_way is not None:
            self._collect_outcome(self._under_way)
        self._notice_run(self._state.run)
        due = self._due is not None and self._state.now >= self._due
        if self._under_way is None and (self._wanted or due):
            self._begin()

    def next_timer(self) -> float | None:
        """Return when `conclude` has to be called at the latest."""
        return None if self._under_way is not None else self._due

    def ask(self) -> str:
        """Order a checkpoint; return an answer for the operator.

        Raises `UsageError` if there is no run to write, or no folder for it.
        """
        if self._writer is None:
            raise UsageError("this master writes no checkpoints: start it with --checkpoint DIR")
        run = self._state.run
        if run is None or not run.founded:
            raise UsageError("there is no run to write: none has begun, or the last one is over")
        under_way = self._under_way
        if under_way is None and not _has_news(run):
            assert run.last_checkpoint is not None
            return f"nothing has changed since {run.last_checkpoint.name} was written"
        self._wanted = True
        updates = sum(run.relay.versions.values())
        after = "" if under_way is None else ", after the checkpoint that is being written"
        return (
            f"run {run.name!r} is being written with its {updates} updates{after}; status says "
            "when it is done"
        )

    def status(self) -> dict[str, Any] | None:
        """Return the last checkpoint of the run for people; None without a folder."""
        if self._writer is None:
            return None
        run = self._state.run
        kept = None if run is None else run.last_checkpoint
        return {
            "file": kept.name if kept else None,
            "updates": sum(kept.versions.values()) if kept else None,
            "writing": self.busy,
        }

    def stop(self, *, broken: bool) -> None:
        """Write the last checkpoint; if `broken`, write none, because it could be wrong."""
        if broken:
            self._writer = self._under_way = None
            self._wanted = False
        elif self._writer is not None:
            self._wanted = True
            self.conclude()

    # Private.

    def _notice_run(self, run: Run | None) -> None:
        """Notice that the run was replaced, or has finished."""
        if run is not None and not run.founded:
            run = None
        if run is not self._run:
            before, self._run = self._run, run
            self._finish_seen = False
            if before is not None and _has_news(before):
                self._keep_unwritten(before)
            self._put_off()
        if run is not None and run.finished and not self._finish_seen:
            self._finish_seen = self._wanted = True

    def _keep_unwritten(self, run: Run) -> None:
        if self._unwritten is not None and _has_news(self._unwritten):
            self._state.metrics.checkpoints_failed.inc()
            logger.error("no checkpoint of run %r: it is dropped, because run %r is over, too",
                         self._unwritten.name, run.name)  # fmt: skip
        self._unwritten = run
        self._wanted = True

    def _begin(self) -> None:
        """Start to write a checkpoint: first of a run that is over, if it has changed."""
        assert self._writer is not None
        if self._unwritten is not None and not _has_news(self._unwritten):
            self._unwritten = None
        run = self._unwritten or self._run
        # After a run that is over, the one in progress is written at once.
        self._wanted = self._unwritten is not None
        self._put_off()
        if run is None or not _has_news(run):
            return
        try:
            self._under_way = Copy.make(run)
        except MemoryError:
            self._fail(run, "there is not enough memory for a copy")
            return
        self._writer.write(self._under_way)

    def _collect_outcome(self, copy: Copy) -> None:
        """Act on the outcome of writing, if there is one yet."""
        assert self._writer is not None
        outcome = self._writer.take_outcome()
        if outcome is None:
            return
        self._under_way = None
        self._put_off()
        if isinstance(outcome, Failed):
            self._fail(copy.of, outcome.reason)
        else:
            copy.of.last_checkpoint = LastCheckpoint(
                outcome.name, copy.versions, copy.is_over, hash_of(copy.buffers)
            )
            self._note(copy, outcome)

    def _note(self, copy: Copy, written: Written) -> None:
        metrics = self._state.metrics
        metrics.checkpoints_written.inc()
        metrics.checkpoint_duration_seconds.set(written.seconds)
        metrics.checkpoint_bytes.set(written.size)
        metrics.checkpoint_timestamp_seconds.set(written.unix_time)
        text = (
            f"run {copy.of.name!r} with {sum(copy.versions.values())} updates was written to "
            f"{written.name}: {written.size} bytes in {written.seconds:.1f} s"
        )
        self._state.note(Happening.CHECKPOINT, text, run=copy.of)
        if written.complaint:
            logger.warning("older checkpoints were not removed: %s", written.complaint)

    def _fail(self, run: Run, reason: str) -> None:
        self._wanted = False
        self._state.metrics.checkpoints_failed.inc()
        text = (
            f"no checkpoint of run {run.name!r}: {reason}; it is tried again after "
            f"{self._state.config.checkpoint_seconds:g} s, and the run goes on"
        )
        self._state.note(Happening.CHECKPOINT_FAILED, text, run=run, level=logging.ERROR)

    def _put_off(self) -> None:
        """Write the next checkpoint after `checkpoint_seconds`."""
        waits = self._run is not None or self._unwritten is not None
        seconds = self._state.config.checkpoint_seconds
        self._due = self._state.now + seconds if waits else None


def _has_news(run: Run) -> bool:
    """Return whether a run has changed since its last checkpoint."""
    kept = run.last_checkpoint
    present = run.is_over, run.relay.versions, hash_of(run.packed_buffers)
    return kept is None or (kept.is_over, kept.versions, kept.buffers_hash) != present
