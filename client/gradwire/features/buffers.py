"""`BufferSharing`: sends what a module's buffers hold, and sets them to the mean of everyone's.

::

    every k steps:  read ──▶ send, if it has changed ──▶ mean with the others' latest ──▶ write
    finish:         read ──▶ send as the last ──▶ all have finished ──▶ mean of all ──▶ write

Each worker computes the mean by itself, of what all have sent last and, between the steps, of what
its own hold now. At the end all have the same to compute it of, and so the same bits.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from gradwire.participant.feature import Feature
from gradwire.replica.stats import Tally
from gradwire.target.buffers import BufferValues, ModuleBuffers, mean_of
from gradwire_protocol.messages.states import Buffers


class Others(Protocol):
    """What has come: a `Membership`."""

    buffers: Mapping[int, Buffers]
    """By rank."""
    lost: str | None
    """Why there is no connection to the master just now."""


class BufferSharing(Feature):
    """A worker's part in the averaging of buffers, or an observer's, which sends nothing.

    Parameters
    ----------
    module : ModuleBuffers
    steps : int
        How many lie between two times; 0 for the end only.
    rank : int
        Ours.
    others : Others
    send : callable or None
        Hands to the network what our own hold; None for an observer.
    tally : Tally
        Where it is counted.
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
        """Whether it has looked once for what others had before it."""
        self._is_due = False
        self._sent: BufferValues | None = None
        self._is_final = False
        """Whether our last are sent."""

    def before_push(self) -> None:
        """Send what our own hold, where that is due and has changed."""
        if self._count():
            self._tell(final=False)

    def stepped(self) -> None:
        """Set our own to the mean, where that is due.

        Who comes later than others begins with the mean of theirs, as it does with their
        parameters. While the connection is lost nothing is averaged: what others have sent before
        would pull ours back again and again.
        """
        if self._send is None:
            self._count()
        if not self._has_begun:
            self._has_begun = True
            self._average(None)
        elif self._is_due and self._others.lost is None:
            self._is_due = False
            self._average(None if self._send is None else self._module.read())

    def finishing(self) -> None:
        """Send what our own hold as the last: it counts until the run is finished."""
        self._tell(final=True)

    def finished(self) -> None:
        """Set our own to the mean of what all have sent last."""
        self._average(self._sent)

    def _count(self) -> bool:
        """Count a step; return whether it is one of those at which something is due."""
        self._steps += 1
        is_due = self._every > 0 and self._steps % self._every == 0
        self._is_due |= is_due
        return is_due

    def _tell(self, *, final: bool) -> None:
        """Send what our own hold, unless everybody knows it."""
        if self._is_final or self._send is None:
            return
        values = self._module.read()
        self._module.layout.check_finite(values)
        if final or not values.equals(self._sent):
            self._sent, self._is_final = values, final
            self._send(self._module.layout.pack(self._rank, values, final=final))

    def _average(self, own: BufferValues | None) -> None:
        """Set our own to the mean of all, those given among them."""
        layout, by_rank = self._module.layout, dict[int, BufferValues]()
        for rank, buffers in self._others.buffers.items():
            if rank == self._rank:
                own = None  # the run was finished without us
                continue
            values = layout.unpack(buffers)
            assert values is not None, "what is of no use was dropped as it came"
            by_rank[rank] = values
        if not by_rank:
            return  # it would be a mean of our own
        if own is not None:
            by_rank[self._rank] = own
        self._module.write(mean_of([by_rank[rank] for rank in sorted(by_rank)]))
        self._tally.buffers_averaged += 1
