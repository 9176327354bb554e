"""Conflation: a slow member holds up nobody, and what waits for it is bounded.

::

              room ──▶ queued ─────────────────▶ delivered ──┐
    update ──┤                                               ▼ all of it
              none ──▶ added to a sum ─────────────────────▶ sent in parts ──▶ delivered

Updates are queued for a member up to so many bytes. Those that come then are added to one sum,
which is sent when everything before it has been delivered: so it begins exactly where the member
has got to, and its versions go on from there in one step. While it is under way, a few updates may
follow it. They wait at the worker until the sum is there, and hold credit, of which enough has to
be left for the parts; what is more than that goes into the next sum. So it comes to an end when
the link is quick enough again.

A sum takes 4 bytes a parameter, and a member has two at most, one on its way and one that grows.
All sums together are bounded. Where there is no room for one, or a member takes nothing for too
long, it cannot be kept, and is told so.

To who has not got its snapshot yet, sums are sent after that: a link that is slow carries one of
them at a time.
"""

from collections.abc import Iterable
from typing import Final

from gradwire_codecs import Update
from gradwire_protocol.limits import WINDOW_BYTES_MIN
from gradwire_server.config import BACKLOG_BYTES_MAX, CONFLATION_BYTES_MAX
from gradwire_server.state.backlog import Backlog
from gradwire_server.state.roster import Member
from gradwire_server.updates.sums import ELEMENT_BYTES, Sum, SumFeed

BEHIND_BYTES_MAX: Final = WINDOW_BYTES_MIN // 2
"""What may follow a sum that is under way. As much of the smallest window is left, 2.4 MB, and that
is eight parts."""


class Conflation:
    """Adds up what members have no room for.

    Parameters
    ----------
    elements : int
        Parameters of the run.
    backlog_bytes_max : int
        Updates queued for one member, by `limits.charge_of`; one may always be.
    bytes_max : int
        All sums together.
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
        """Those with a sum."""

    def __len__(self) -> int:
        """Return for how many members updates are added up."""
        return len(self._members)

    @property
    def nbytes(self) -> int:
        """Memory of all sums."""
        return self._sum_bytes * sum(len(member.backlog.sums) for member in self._members)

    def can_take(self, charges: Iterable[int]) -> bool:
        """Return whether updates can be queued for who has nothing, or be added up for it."""
        return self.nbytes + self._sum_bytes <= self._bytes_max or self.can_queue(charges)

    def can_queue(self, charges: Iterable[int]) -> bool:
        """Return whether updates can all be queued for who has nothing."""
        return sum(charges) <= self._backlog_bytes_max

    def has_room(self, backlog: Backlog, charge: int) -> bool:
        """Return whether an update of this charge can be queued."""
        if backlog.gathering is not None or backlog.hopeless is not None:
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
        clock: int = 0,
    ) -> None:
        """Add an update to what a member will be sent as a sum."""
        backlog = member.backlog
        if backlog.hopeless is not None:
            return
        if backlog.gathering is None and not self._begin(member, now):
            return
        assert backlog.gathering is not None
        if not backlog.gathering.add_update(rank, sequence, update, clock):
            backlog.hopeless = (
                f"the sum of {backlog.gathering.updates} updates that wait for this worker takes a "
                "parameter out of range with the next one"
            )

    def proceed(self, member: Member) -> None:
        """Send the sum of a member, if everything before it has arrived."""
        backlog = member.backlog
        if (
            backlog.gathering is not None
            and backlog.feed is None
            and not backlog.nbytes
            and member.feed is None
        ):
            total, backlog.gathering = backlog.gathering, None
            backlog.feed = SumFeed(total, member.link)

    def on_delivered(self, member: Member) -> int | None:
        """Note that a part has arrived; return how many updates there were, if it was the last."""
        backlog = member.backlog
        if backlog.feed is None or not backlog.feed.on_delivered():
            return None
        updates = backlog.feed.total.updates
        backlog.feed = None
        if backlog.gathering is None:
            del self._members[member]
        return updates

    def forget(self, member: Member) -> None:
        """Drop the sums of a member that is gone."""
        member.backlog.gathering = member.backlog.feed = None
        self._members.pop(member, None)

    def due(self, slow_seconds: float) -> float | None:
        """Return when the first member will have taken nothing for so long."""
        taken = (member.backlog.taken_at for member in self._members)
        return min((at + slow_seconds for at in taken), default=None)

    def stalled(self, slow_seconds: float, now: float) -> list[tuple[Member, str]]:
        """Return who has taken nothing for so long, and what waits for each."""
        return [
            (
                member,
                f"{sum(total.updates for total in member.backlog.sums)} updates were added up for "
                f"this worker, and it has taken nothing for {now - member.backlog.taken_at:.0f} s; "
                f"the limit is {slow_seconds:g} s",
            )
            for member in self._members
            if now >= member.backlog.taken_at + slow_seconds
        ]

    @property
    def _sum_bytes(self) -> int:
        return ELEMENT_BYTES * self.elements

    def _new_sum(self) -> Sum | None:
        """Return a sum of nothing; None where there is no memory for it."""
        if self.nbytes + self._sum_bytes > self._bytes_max:
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
            backlog.hopeless = (
                f"{backlog.nbytes} bytes are under way to this worker, and there is no room to add "
                f"up what comes after them: that takes {self._sum_bytes} bytes, and of "
                f"{self._bytes_max} for all slow workers {self.nbytes} are taken"
            )
            return False
        if not backlog.conflated:
            backlog.taken_at = now
        backlog.gathering = total
        self._members[member] = None
        return True
