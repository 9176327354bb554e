"""`BufferSharing`: sends what a module's buffers hold, and sets them to the mean of everyone's.

::

    every k steps:  read ──▶ send, if it has changed ──▶ mean with the others' latest ──▶ write
    finish:         read ──▶ send as the last ──▶ all have finished ──▶ mean of all ──▶ write

Each worker computes the mean by itself, from what all others have sent last and, before the end,
from what its own buffers hold now. At the end all compute it from the same values, and get the same
bits.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from gradwire.participant.feature import Feature
from gradwire.replica.stats import Tally
from gradwire.target.buffers import BufferValues, ModuleBuffers, mean_of
from gradwire_protocol.messages.states import Buffers


class Others(Protocol):
    """What other workers have sent: a `Membership`."""

    buffers: Mapping[int, Buffers]
    """By rank."""
    lost: str | None
    """Why there is no connection to the master now; None while there is one."""


class BufferSharing(Feature):
    """Averages the buffers of a worker with those of others, or of an observer, which sends none.

    Parameters
    ----------
    steps : int
        From one averaging to the next; 0 for the end only.
    rank : int
        Ours.
    send : callable or None
        Passes our own buffers to the network; None for an observer.
    """

    def __init__(
        self,
        module: ModuleBuffers,
        *,
        steps: int,
        rank: int,
        others: Others,
        send: Callable[[Buffers], None] | None,
        tally: Tally,
    ) -> None:
        self._module = module
        self._every = steps
        self._rank = rank
        self._others = others
        self._send = send
        self._tally = tally
        self._steps = 0
        self._has_begun = False
        """Whether it has averaged what others had sent before it came."""
        self._is_due = False
        self._sent: BufferValues | None = None
        self._is_final = False
        """Whether our last values were sent."""

    def begin(self) -> None:
        """Begin with the mean of the others' buffers, as with their parameters, if there are any.

        Those of the worker that had our rank before count as well.
        Those that come until the first step is over count as well, where there were none.
        """
        if self._others.buffers:
            self._has_begun = True
            self._average(None)

    def before_push(self) -> None:
        """Send our buffers, if that is due and they have changed."""
        if self._count():
            self._tell(final=False)

    def after_step(self) -> None:
        """Set our buffers to the mean, if that is due.

        While the connection is lost nothing is averaged: what others had sent before
        would pull our buffers back again and again.
        """
        if self._send is None:
            self._count()
        if not self._has_begun:
            self._has_begun = True
            self._average(None)
        elif self._is_due and self._others.lost is None:
            self._is_due = False
            self._average(None if self._send is None else self._module.read())

    def before_finish(self) -> None:
        """Send our last buffers: they count until the run is finished."""
        self._tell(final=True)

    def after_finish(self) -> None:
        """Set our buffers to the mean of what all workers have sent last."""
        self._average(self._sent)

    def _count(self) -> bool:
        """Count a step; return whether an averaging is due."""
        self._steps += 1
        is_due = self._every > 0 and self._steps % self._every == 0
        self._is_due |= is_due
        return is_due

    def _tell(self, *, final: bool) -> None:
        """Send our buffers, unless all workers have these values."""
        if self._is_final or self._send is None:
            return
        values = self._module.read()
        self._module.layout.check_finite(values)
        if final or not values.equals(self._sent):
            self._sent, self._is_final = values, final
            self._send(self._module.layout.pack(self._rank, values, final=final))

    def _average(self, own: BufferValues | None) -> None:
        """Set our buffers to the mean of all workers', with `own` for ours."""
        layout, by_rank = self._module.layout, dict[int, BufferValues]()
        for rank, buffers in self._others.buffers.items():
            if rank == self._rank and not buffers.nbytes:
                own = None  # withdrawn: the run was finished without us
                continue
            if rank == self._rank and own is not None:
                continue  # those of the last worker of our rank
            values = layout.unpack(buffers)
            assert values is not None, "`SharedBuffers` has dropped what does not fit"
            by_rank[rank] = values
        if not by_rank:
            return  # nothing to average with
        if own is not None:
            by_rank[self._rank] = own
        self._module.write(mean_of([by_rank[rank] for rank in sorted(by_rank)]))
        self._tally.buffers_averaged += 1
