"""`Costs`: seconds of one core that the codec, the network thread and a master take.

`calibration` measures them; ``--costs`` reads them from the JSON of an estimate made on another
machine.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import isfinite
from pathlib import Path
from typing import Any, Self

from gradwire.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds of one core; bytes are those of encoded updates."""

    step_seconds: float
    """A call of `session.step` without search, encoding and applying, on the training thread."""
    pass_seconds_per_parameter: float
    """Search for what to send, on the training thread or several threads."""
    encode_seconds_per_hit: float
    """Encoding an element that is sent, on the training thread."""
    apply_seconds: float
    """Applying a peer's update, however small, on the training thread."""
    apply_seconds_per_hit: float
    """Decoding and applying an element of it."""
    network_seconds: float
    """Handling an update, sent or received, on the network thread of a worker."""
    network_seconds_per_byte: float
    master_update_seconds: float
    """Receiving an update, at the master."""
    master_seconds_per_hit: float
    """Decoding an element of an update there, and adding it to the master's replica."""
    master_delivery_seconds: float
    """Passing an update on to one worker."""
    master_seconds_per_byte: float
    """A byte of an update that the master receives or passes on."""

    def to_encode(self, parameters: float, hits: float) -> float:
        """Return the seconds of the training thread for an update, the search included."""
        return (
            self.step_seconds
            + parameters * self.pass_seconds_per_parameter
            + hits * self.encode_seconds_per_hit
        )

    def to_apply(self, hits: float) -> float:
        """Return the seconds of the training thread for an update of another worker."""
        return self.apply_seconds + hits * self.apply_seconds_per_hit

    def to_handle(self, size: float) -> float:
        """Return the seconds of a worker's network thread for an update of `size` bytes."""
        return self.network_seconds + size * self.network_seconds_per_byte

    def to_take_in(self, hits: float, size: float) -> float:
        """Return the seconds in which a master receives an update and adds it up."""
        return (
            self.master_update_seconds
            + hits * self.master_seconds_per_hit
            + size * self.master_seconds_per_byte
        )

    def to_pass_on(self, size: float) -> float:
        """Return the seconds in which a master passes an update on to one worker."""
        return self.master_delivery_seconds + size * self.master_seconds_per_byte

    def scaled_to(self, *, encode: float | None, apply: float | None) -> "Costs":
        """Return costs with those of the codec multiplied by these factors.

        In a measured run training empties caches and shares cores; in a calibration it does not.
        """
        pushed, pulled = encode or 1.0, apply or 1.0
        return replace(
            self,
            pass_seconds_per_parameter=self.pass_seconds_per_parameter * pushed,
            encode_seconds_per_hit=self.encode_seconds_per_hit * pushed,
            apply_seconds=self.apply_seconds * pulled,
            apply_seconds_per_hit=self.apply_seconds_per_hit * pulled,
        )

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read costs from a file: the JSON of an estimate, or its object ``costs`` alone.

        `UsageError` if the file does not exist, or has no such costs.
        """
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise UsageError(f"costs in {str(path)!r}: {error}") from None
        if isinstance(found, dict):
            found = found.get("costs", found)
        if not isinstance(found, dict):
            raise UsageError(f"costs in {str(path)!r}: no object")
        return cls._of(found, path)

    @classmethod
    def _of(cls, found: Mapping[str, Any], path: Path) -> Self:
        names = [field.name for field in fields(cls)]
        missing = [name for name in names if name not in found]
        if missing:
            raise UsageError(f"costs in {str(path)!r}: there is no {', '.join(missing)}")
        for name in names:
            value = found[name]
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not isfinite(value) or not 0 <= value <= 1:
                raise UsageError(
                    f"costs in {str(path)!r}: {name}={value!r}; it has to be 0 to 1 seconds"
                )
        return cls(**{name: float(found[name]) for name in names})
