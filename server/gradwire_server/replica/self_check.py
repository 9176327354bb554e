"""`SelfCheck`: the master's own replica is compared with the digests of the updates.

It checks a few blocks at a time, so that no message waits for it, and all of them once a minute. A
single wrong bit in a block is found and flipped back. If more bits are wrong, the log, the status
and a metric say so, and the remedy is to start the master on another machine. It recovers the run
from the workers, whose replicas are intact: they never replace a block of theirs by one that does
not match its digest.
"""

from typing import Final

from gradwire_protocol.messages.snapshots import block_span, count_blocks
from gradwire_server.state.replica_copy import check_block
from gradwire_server.state.run import Run
from gradwire_server.state.state import State

PASS_SECONDS: Final = 60.0
"""Duration of one pass over all blocks."""

STEP_SECONDS: Final = 0.1
"""Least time between two steps. With a thousand million parameters a step is 7 blocks, a third of a
millisecond."""


class SelfCheck:
    """Checks the replica of a master."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._run: Run | None = None
        self._next = 0
        self._due: float | None = None

    def next_timer(self) -> float | None:
        """Return when `handle_timer` has to be called at the latest."""
        return self._due

    def conclude(self) -> None:
        """Start over if another run is in progress."""
        run = self._state.run
        run = run if run is not None and run.founded else None
        if run is not self._run:
            self._run, self._next = run, 0
            self._due = None if run is None else self._state.now + self._interval(run)
            self._state.metrics.replica_blocks_damaged.set(0)

    def handle_timer(self) -> bool:
        """Check the next blocks, if that is due; return whether the pass is complete."""
        run = self._run
        if run is None or self._due is None or self._state.now < self._due:
            return False
        blocks = count_blocks(len(run.replica))
        per_step = -(-blocks * self._interval(run) // PASS_SECONDS)
        stop = min(self._next + int(per_step), blocks)
        for number in range(self._next, stop):
            self._check(run, number)
        self._next = stop % blocks
        self._due = self._state.now + self._interval(run)
        return not self._next

    def _check(self, run: Run, number: int) -> None:
        assert run.digests is not None
        if number in run.damaged:
            return  # reported already
        block = run.replica.values[block_span(number, len(run.replica))]
        mended = check_block(block, number, run.digests.blocks.values, run.layout)
        if mended is None:
            return
        self._state.metrics.replica_damages.inc()
        if not mended:
            run.damaged.add(number)
            self._state.metrics.replica_blocks_damaged.set(len(run.damaged))

    def _interval(self, run: Run) -> float:
        return max(PASS_SECONDS / count_blocks(len(run.replica)), STEP_SECONDS)
