"""`SelfCheck`: the master's own replica is compared with what the updates lead to, bit by bit.

A few blocks at a time, so that nobody waits for it: all of them once a minute. One bit that is
wrong in a block is found and turned back. More cannot be: then it is said in the log, by the status
and by a metric, and the way out is to start the master anew on another machine. It gets its run
back from the workers, whose replicas are whole: they put no block in the place of their own that
its digest does not confirm.
"""

from typing import Final

from gradwire_protocol.messages.snapshots import block_span, count_blocks
from gradwire_server.state.replica_copy import check_block
from gradwire_server.state.run import Run
from gradwire_server.state.state import State

PASS_SECONDS: Final = 60.0
"""How long it takes to look at every block once."""

STEP_SECONDS: Final = 0.1
"""How often to go on, at the most. Of a thousand million parameters it is 7 blocks every time, a
third of a millisecond."""


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
        """Notice which run is in progress."""
        run = self._state.run
        run = run if run is not None and run.founded else None
        if run is not self._run:
            self._run, self._next = run, 0
            self._due = None if run is None else self._state.now + self._interval(run)
            self._state.metrics.replica_blocks_damaged.set(0)

    def handle_timer(self) -> bool:
        """Look at the next blocks, if it is time; return whether that was the last of a pass."""
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
            return  # it was said
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
