"""`LossRate`: which part of its packets a path loses, as far as lately seen."""

from typing import Final

MEMORY_PACKETS: Final = 4_096
"""When so many packets were seen, they count half from then on."""

TRUSTED_PACKETS: Final = 256
"""Before so many packets, there is nothing to be said."""


class LossRate:
    """Packets sent and lost, the old ones fading."""

    __slots__ = ("_lost", "_seen")

    def __init__(self) -> None:
        self._seen = 0.0
        self._lost = 0.0

    @property
    def rate(self) -> float:
        """The part that was lost; 0 as long as too little is known."""
        return self._lost / self._seen if self._seen >= TRUSTED_PACKETS else 0.0

    def record(self, lost: int, arrived: int) -> None:
        """Note what became of some packets."""
        self._seen += lost + arrived
        self._lost += lost
        if self._seen > MEMORY_PACKETS:
            self._seen /= 2
            self._lost /= 2
