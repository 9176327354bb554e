"""`Backlog`: the updates under way to one member.

It tells which updates the member lacks, and so which updates are stable. Bytes, ranks and two sums
bound its size, whatever the number of updates: see `conflation`.
"""

from collections.abc import Iterator

from gradwire_server.updates.sums import Sum, SumFeed


class Backlog:
    """Single updates under way, and at most two sums of later ones."""

    def __init__(self) -> None:
        self.nbytes = 0
        """Charges of the single updates that are under way."""
        self.open_sum: Sum | None = None
        """The sum that new updates are added to, because there is no room to queue them."""
        self.feed: SumFeed | None = None
        """The sum that is being sent."""
        self.progress_at = 0.0
        """When a message of this backlog was delivered last, or the first sum was begun."""
        self.drop_reason: str | None = None
        """Why the member has to be expelled; None while it keeps up."""
        self._under_way: dict[int, dict[int, tuple[int, float]]] = {}
        """Leadership and time of acceptance, by rank and sequence, in order."""

    def __len__(self) -> int:
        """Return how many updates the member lacks."""
        alone = sum(len(of_rank) for of_rank in self._under_way.values())
        return alone + sum(total.updates for total in self.sums)

    @property
    def oldest(self) -> float | None:
        """When the oldest single update under way was accepted; None without any."""
        first = (next(iter(of_rank.values())) for of_rank in self._under_way.values())
        return min((accepted_at for _, accepted_at in first), default=None)

    @property
    def sums(self) -> list[Sum]:
        """The sums that the member does not have yet, the older one first."""
        sent = [] if self.feed is None else [self.feed.total]
        return sent if self.open_sum is None else [*sent, self.open_sum]

    def append(self, rank: int, sequence: int, charge: int, now: float) -> None:
        """Note that an update is being sent; its sequence is higher than all before of its rank."""
        self._under_way.setdefault(rank, {})[sequence] = charge, now
        self.nbytes += charge

    def remove(self, rank: int, sequence: int) -> float | None:
        """Note that an update was delivered; return when it was accepted."""
        of_rank = self._under_way.get(rank, {})
        charge, accepted_at = of_rank.pop(sequence, (0, None))
        self.nbytes -= charge
        if not of_rank:
            self._under_way.pop(rank, None)
        return accepted_at

    def received_up_to(self) -> Iterator[tuple[int, int]]:
        """Yield ranks of which the member lacks updates, with the sequence before the first.

        A rank may come more than once; the lowest sequence counts.
        """
        for rank, of_rank in self._under_way.items():
            yield rank, next(iter(of_rank)) - 1
        for total in self.sums:
            yield from total.before.items()
