"""`LossRate`: the share of packets that a path has lately lost."""

from typing import Final

MEMORY_PACKETS: Final = 4_096
"""Packets after which all counts are halved, so that older ones matter less."""

TRUSTED_PACKETS: Final = 256
"""Packets needed before the rate is trusted."""


class LossRate:
    """Packets seen and lost, with older ones fading."""

    __slots__ = ("_lost", "_seen")

    def __init__(self) -> None:
        self._seen = 0.0
        self._lost = 0.0

    @property
    def rate(self) -> float:
        """The share lost; 0 while too few packets were seen."""
        return self._lost / self._seen if self._seen >= TRUSTED_PACKETS else 0.0

    def record(self, lost: int, arrived: int) -> None:
        """Record lost and arrived packets."""
        self._seen += lost + arrived
        self._lost += lost
        if self._seen > MEMORY_PACKETS:
            self._seen /= 2
            self._lost /= 2
