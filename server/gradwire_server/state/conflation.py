"""Conflation: a slow member delays no other one, and its backlog is bounded.

::

              room ──▶ queued ─────────────────▶ delivered ──┐
    update ──┤                                               ▼ all of it
              none ──▶ added to a sum ─────────────────────▶ sent in parts ──▶ delivered

Updates are queued for a member up to a number of bytes. Later updates are added to one sum, which
is sent when all messages before it were delivered: so the sum begins exactly at the member's
versions, and takes them forward in one step. While a sum is under way, a few single updates may
follow it. They wait at the worker until the sum is complete, and hold credit, of which enough must
be left for the parts of the sum; further updates go into the next sum. When the link is fast enough
again, the member goes back to single updates.

A sum takes 4 bytes a parameter. A member has at most two, one that is being sent and one that
grows. All sums together are bounded. Where there is no room for a sum, or a member takes nothing
for too long, the member is expelled with the reason.

A member that is still receiving its snapshot is sent sums only after that, because a slow link
should carry one of the two at a time.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from gradwire_codecs import Update
from gradwire_protocol.limits import WINDOW_BYTES_MIN
from gradwire_server.config import BACKLOG_BYTES_MAX, CONFLATION_BYTES_MAX
from gradwire_server.state.backlog import Backlog
from gradwire_server.state.roster import Member
from gradwire_server.updates.sums import ELEMENT_BYTES, Sum, SumFeed

BEHIND_BYTES_MAX: Final = WINDOW_BYTES_MIN // 2
"""Bytes of single updates that may follow a sum under way. The other half of the smallest window,
2.4 MB, is left for the sum: eight parts."""


class Conflation:
    """Adds up updates for members that have no room for them.

    Parameters
    ----------
    backlog_bytes_max : int
        Bytes of updates queued for one member, by `limits.charge_of`. One update always fits.
    bytes_max : int
        Memory of all sums together, those of other runs included.
    """

    def __init__(
        self,
        elements: int,
        backlog_bytes_max: int = BACKLOG_BYTES_MAX,
        bytes_max: int = CONFLATION_BYTES_MAX,
    ) -> None:
        self.elements = elements
        self._backlog_bytes_max = backlog_bytes_max
        self._bytes_max = bytes_max
        self._members: dict[Member, None] = {}
        """Members with a sum, as an ordered set."""
        self.total_bytes: Callable[[], int] = lambda: self.nbytes
        """Returns the memory of all sums that share `bytes_max`, these included."""

    def __len__(self) -> int:
        """Return the number of members with a sum."""
        return len(self._members)

    @property
    def nbytes(self) -> int:
        """Memory of all sums."""
        return self._sum_bytes * sum(len(member.backlog.sums) for member in self._members)

    @property
    def _has_memory(self) -> bool:
        """Whether there is room for one more sum."""
        return self.total_bytes() + self._sum_bytes <= self._bytes_max

    def can_take(self, charges: Iterable[int]) -> bool:
        """Return whether updates fit the empty backlog of a new member, queued or as a sum."""
        return self._has_memory or self.can_queue(charges)

    def can_queue(self, charges: Iterable[int]) -> bool:
        """Return whether the empty backlog of a new member has room to queue all these updates."""
        return sum(charges) <= self._backlog_bytes_max

    def has_room(self, backlog: Backlog, charge: int) -> bool:
        """Return whether an update of this charge can be queued."""
        if backlog.open_sum is not None or backlog.drop_reason is not None:
            return False
        if backlog.feed is not None:
            most = min(BEHIND_BYTES_MAX, self._backlog_bytes_max)
            return backlog.nbytes + charge <= most
        return not backlog.nbytes or backlog.nbytes + charge <= self._backlog_bytes_max

    def add_update(
        self,
        member: Member,
        rank: int,
        sequence: int,
        update: Update,
        now: float,
        *,
        clocks: Mapping[int, int],
        closes: Mapping[int, int] | None = None,
    ) -> None:
        """Add an update to the sum for a member."""
        backlog = member.backlog
        if backlog.drop_reason is not None:
            return
        if backlog.open_sum is None and not self._begin(member, now):
            return
        assert backlog.open_sum is not None
        if not backlog.open_sum.add_update(rank, sequence, update, clocks, closes):
            backlog.drop_reason = (
                f"the next update would take a parameter of the sum of {backlog.open_sum.updates} "
                "updates that wait for this worker out of the range of 32 bits"
            )

    def send_if_due(self, member: Member) -> None:
        """Start to send the sum of a member, if all messages before it were delivered."""
        backlog = member.backlog
        if (
            backlog.open_sum is not None
            and backlog.feed is None
            and not backlog.nbytes
            and member.feed is None
        ):
            total, backlog.open_sum = backlog.open_sum, None
            backlog.feed = SumFeed(total, member.link)

    def on_delivered(self, member: Member) -> int | None:
        """Note that a part was delivered; with the last one, return the sum's number of updates."""
        backlog = member.backlog
        if backlog.feed is None or not backlog.feed.on_delivered():
            return None
        updates = backlog.feed.total.updates
        backlog.feed = None
        if backlog.open_sum is None:
            del self._members[member]
        return updates

    def forget(self, member: Member) -> None:
        """Drop the sums of a member that has left."""
        member.backlog.open_sum = member.backlog.feed = None
        self._members.pop(member, None)

    def due(self, slow_seconds: float) -> float | None:
        """Return when the first member will have taken nothing for `slow_seconds`."""
        taken = (member.backlog.progress_at for member in self._members)
        return min((at + slow_seconds for at in taken), default=None)

    def stalled(self, slow_seconds: float, now: float) -> list[tuple[Member, str]]:
        """Return the members that have taken nothing for `slow_seconds`, each with the reason."""
        return [
            (
                member,
                f"{sum(total.updates for total in member.backlog.sums)} updates were added up for "
                "this worker, and it has taken nothing for "
                f"{now - member.backlog.progress_at:.0f} s; the limit is {slow_seconds:g} s",
            )
            for member in self._members
            if now >= member.backlog.progress_at + slow_seconds
        ]

    @property
    def _sum_bytes(self) -> int:
        return ELEMENT_BYTES * self.elements

    def _new_sum(self) -> Sum | None:
        """Return an empty sum; None where there is no memory for it."""
        if not self._has_memory:
            return None
        try:
            return Sum(self.elements)
        except MemoryError:
            return None

    def _begin(self, member: Member, now: float) -> bool:
        """Begin a sum; return whether there is room for it."""
        backlog = member.backlog
        total = self._new_sum()
        if total is None:
            backlog.drop_reason = (
                f"{backlog.nbytes} bytes are under way to this worker, and there is no room to add "
                f"up later updates: a sum takes {self._sum_bytes} bytes, and of the "
                f"{self._bytes_max} for all slow workers {self.total_bytes()} are in use"
            )
            return False
        if backlog.feed is None:
            backlog.progress_at = now
        backlog.open_sum = total
        self._members[member] = None
        return True
