"""`BufferSharing`: sends what a module's buffers hold, and sets them to what all agree on.

::

    join:           those of the run ──▶ write (the first worker's are the run's)
    every k steps:  read ──▶ send, if it has changed ──▶ agree with the others' latest ──▶ write
    finish:         read ──▶ send as the last ──▶ all have finished ──▶ agree ──▶ write

What all agree on is the mean of running statistics and, for everything else, the values of the
leading worker: see `gradwire_protocol.messages.buffers.agreement`. Each computes it by itself, from
what all others have sent last and, before the end, from what its own buffers hold now. At the end
all compute it from the same values, and get the same bits.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from gradwire.participant.feature import Feature
from gradwire.replica.stats import Tally
from gradwire.target.buffers import ModuleBuffers, check_finite, differing
from gradwire_protocol.messages.buffers.agreement import Standing, agreed
from gradwire_protocol.messages.buffers.layout import Buffers, BufferValues

logger = logging.getLogger("gradwire.buffers")

NAMES_SHOWN: Final = 5


class Others(Protocol):
    """What other workers have sent: a `Membership`."""

    buffers: Mapping[int, Buffers]
    """By rank."""
    lost: str | None
    """Why there is no connection to the master now; None while there is one."""


class BufferSharing(Feature):
    """Shares the buffers of a worker with others, or follows them for an observer.

    Parameters
    ----------
    steps : int
        From one time to the next; 0 for the end only.
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
        """Whether it has taken what others had sent before it came."""
        self._is_due = False
        self._sent: BufferValues | None = None
        self._standing: Standing | None = None
        """That of our last values, if they were sent."""

    def begin(self, *, founds: bool = False, run_is_new: bool = False) -> None:
        """Begin with the run's buffers, as with its parameters, if there are any.

        Buffers of the previous worker of this rank count too. Where there were none yet, those that
        arrive before the end of the first step count. The founder has sent its own already.

        Where the run is new, all workers should have had the same, and buffers that differ are
        named; later only those that are not averaged.
        """
        if founds:
            self._has_begun = True
            self._sent = self._module.read()
            self._standing = Standing(leaves=False, final=False, rank=self._rank)
        elif self._others.buffers:
            self._has_begun = True
            before = self._module.read()
            self._agree(None)
            self._name_what_differed(before, run_is_new=run_is_new)

    def before_push(self) -> None:
        """Send our buffers, if that is due and they have changed."""
        if self._count():
            self._tell(Standing(leaves=False, final=False, rank=self._rank))

    def after_step(self) -> None:
        """Set our buffers to what all agree on, if that is due.

        While the connection is lost nothing is set: what others had sent before
        would pull our buffers back again and again.
        """
        if self._send is None:
            self._count()
        if not self._has_begun:
            self._has_begun = True
            self._agree(None)
        elif self._is_due and self._others.lost is None:
            self._is_due = False
            self._agree(None if self._send is None else self._module.read())

    def before_finish(self) -> None:
        """Send our last buffers: they count until the run is finished."""
        self._tell(Standing(leaves=False, final=True, rank=self._rank))

    def before_leave(self) -> None:
        """Send our last buffers, of which only statistics count while others train."""
        self._tell(Standing(leaves=True, final=True, rank=self._rank))

    def after_finish(self) -> None:
        """Set our buffers to what follows from what all workers have sent last."""
        self._agree(self._sent)

    def _count(self) -> bool:
        """Count a step; return whether buffers are due."""
        self._steps += 1
        is_due = self._every > 0 and self._steps % self._every == 0
        self._is_due |= is_due
        return is_due

    def _tell(self, standing: Standing) -> None:
        """Send our buffers, unless all workers have these values."""
        is_over = self._standing is not None and self._standing.final
        if is_over or self._send is None:
            return
        values = self._module.read()
        check_finite(self._module.layout, values)
        if standing.final or not values.equals(self._sent):
            self._sent, self._standing = values, standing
            layout, (leaves, final, rank) = self._module.layout, standing
            self._send(layout.pack_values(rank, values, final=final, leaves=leaves))

    def _agree(self, own: BufferValues | None) -> None:
        """Set our buffers to what all workers' lead to, with `own` for ours."""
        layout, found = self._module.layout, dict[Standing, BufferValues]()
        for rank, buffers in self._others.buffers.items():
            if rank == self._rank and not buffers.nbytes:
                own = None  # withdrawn: the run was finished without us
                continue
            if rank == self._rank and own is not None:
                continue  # those of the last worker of our rank
            values = layout.unpack(buffers)
            assert values is not None, "`SharedBuffers` has dropped what does not fit"
            found[Standing.of(buffers)] = values
        if not found:
            return  # nobody to agree with
        if own is not None:
            found[self._standing or Standing(leaves=False, final=False, rank=self._rank)] = own
        self._module.write(agreed(found))
        self._tally.buffers_averaged += 1

    def _name_what_differed(self, before: BufferValues, *, run_is_new: bool) -> None:
        layout = self._module.layout
        names = differing(layout, before, self._module.read())
        if not run_is_new:
            others = {tensor.name for tensor in layout.others}
            names = [name for name in names if name in others]
        if names:
            more = len(names) - NAMES_SHOWN
            logger.info(
                "%d buffers had other values than the run's, which this worker takes: %s%s",
                len(names),
                ", ".join(names[:NAMES_SHOWN]),
                f" and {more} more" if more > 0 else "",
            )
