"""`Backlog`: what is under way to one member and has not arrived.

It says what the member does not have yet, and so when an update is stable. Its size is bounded by
bytes, ranks and two sums, not by how many updates there were: see `conflation`.
"""

from collections.abc import Iterator

from gradwire_server.updates.sums import Sum, SumFeed


class Backlog:
    """Updates by name, and sums in place of later ones.

    Parameters
    ----------
    rank : int
        Of the member: what is under way to it of its own rank is a correction.
    """

    def __init__(self, rank: int) -> None:
        self.nbytes = 0
        """What the updates of others cost that are under way by themselves."""
        self.correction_bytes = 0
        """What corrections do."""
        self.gathering: Sum | None = None
        """The sum that updates are added to, as there is no room for them."""
        self.feed: SumFeed | None = None
        """The sum on its way."""
        self.taken_at = 0.0
        """When something of it arrived last, or the first sum was begun."""
        self.hopeless: str | None = None
        """Why the member cannot be kept, where there is a reason: it has to be sent away."""
        self._rank = rank
        self._under_way: dict[int, dict[int, tuple[int, float]]] = {}
        """By rank and sequence, in order: what it costs, and when it was accepted."""

    def __len__(self) -> int:
        """Return how many updates the member lacks."""
        alone = sum(len(of_rank) for of_rank in self._under_way.values())
        return alone + sum(total.updates for total in self.sums)

    @property
    def oldest(self) -> float | None:
        """When the first one was accepted of those under way by themselves; None without any."""
        first = (next(iter(of_rank.values())) for of_rank in self._under_way.values())
        return min((accepted_at for _, accepted_at in first), default=None)

    @property
    def conflated(self) -> bool:
        """Whether updates are added up for the member, or were."""
        return self.gathering is not None or self.feed is not None

    @property
    def sums(self) -> list[Sum]:
        """The sums that it has not got, the older one first."""
        sent = [] if self.feed is None else [self.feed.total]
        return sent if self.gathering is None else [*sent, self.gathering]

    def append(self, rank: int, sequence: int, charge: int, now: float) -> None:
        """Note that an update is being sent; a later one than all of its rank."""
        of_rank = self._under_way.get(rank)
        if of_rank is None:
            of_rank = self._under_way[rank] = {}
        of_rank[sequence] = charge, now
        self._charge(rank, charge)

    def remove(self, rank: int, sequence: int) -> float | None:
        """Note that an update has arrived; return when it was accepted."""
        of_rank = self._under_way.get(rank, {})
        charge, accepted_at = of_rank.pop(sequence, (0, None))
        self._charge(rank, -charge)
        if not of_rank:
            self._under_way.pop(rank, None)
        return accepted_at

    def reached(self) -> Iterator[tuple[int, int]]:
        """Iterate over rank and sequence up to which it has everything, where it lacks something.

        A rank may come more than once; the lowest sequence counts.
        """
        for rank, of_rank in self._under_way.items():
            yield rank, next(iter(of_rank)) - 1
        for total in self.sums:
            yield from total.before.items()

    def _charge(self, rank: int, charge: int) -> None:
        if rank == self._rank:
            self.correction_bytes += charge
        else:
            self.nbytes += charge
