"""`ArrivingSums`: what relays have merged, until all parts of a sum are here and decoded."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from gradwire_codecs import MalformedUpdateError, Update
from gradwire_protocol import InvalidMessageError
from gradwire_protocol.messages.masters.relaying import Merged
from gradwire_server.branches.branch import Branch
from gradwire_server.updates.decoding import Decoded, Decoder

ELEMENT_BYTES_MAX: Final = 8
PART_BYTES_MAX: Final = 64 * 2**10
"""An update is at most so many bytes for each element of the run, and its headers in all parts."""

HEADER_BYTES: Final = 64
"""What a part counts for besides its body."""


class ArrivingSums:
    """Sums that come in parts, in any order, one of each relay at a time."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._parts: dict[Branch, dict[int, Merged]] = {}
        """By part, what has come of sums of which more comes."""

    def take(self, branch: Branch, merged: Merged, elements: int | None) -> list[Merged]:
        """Return all parts of a sum, if all are here now; else none.

        Raises `InvalidMessageError` if they cannot be parts of one sum.

        Parameters
        ----------
        elements : int or None
            Of the run, which bound what is kept; None where there is none, and nothing is.
        """
        if elements is None:
            merged = replace(merged, body=b"")
        parts = self._parts.setdefault(branch, {})
        for other in parts.values():
            if (other.number, other.parts) != (merged.number, merged.parts):
                raise InvalidMessageError(f"Merged {merged.number} within {other.number}")
        if merged.part in parts or merged.part >= merged.parts:
            raise InvalidMessageError(f"Merged: part {merged.part} of {merged.parts}")
        _check_spans(merged)
        size = sum(HEADER_BYTES + len(each.body) for each in (*parts.values(), merged))
        most = ELEMENT_BYTES_MAX * (elements or 0) + PART_BYTES_MAX
        if size > most:
            raise InvalidMessageError(
                f"Merged {merged.number} of {size} bytes; a sum of {elements or 0} elements has "
                f"at most {most}"
            )
        parts[merged.part] = merged
        if len(parts) < merged.parts:
            return []
        del self._parts[branch]
        return [parts[part] for part in range(merged.parts)]

    def decode(
        self,
        branch: Branch,
        parts: Sequence[Merged],
        elements: int,
        then: Callable[[list[Update], MalformedUpdateError | None], None],
    ) -> None:
        """Decode the parts of a sum; then pass on its updates, and the first error."""
        decoded: list[Decoded] = []

        def take(latest: Decoded) -> None:
            decoded.append(latest)
            if len(decoded) == len(parts):
                errors = [each for each in decoded if isinstance(each, MalformedUpdateError)]
                updates = [each for each in decoded if isinstance(each, Update)]
                then(updates, errors[0] if errors else None)

        for part in parts:
            self._decoder.decode(-branch.number, part.body, elements, take)

    def forget(self, branch: Branch) -> None:
        """Forget a relay that is gone."""
        self._parts.pop(branch, None)


def _check_spans(merged: Merged) -> None:
    """Raise `InvalidMessageError` if the spans are not what a sum has in this part."""
    if bool(merged.spans) != merged.is_last or (merged.clocks and not merged.is_last):
        raise InvalidMessageError("Merged: spans and clocks belong to the last part")
    for span in merged.spans:
        if span.sequence <= span.after:
            raise InvalidMessageError(f"Merged: updates {span.after} to {span.sequence}")
    if len({span.rank for span in merged.spans}) < len(merged.spans):
        raise InvalidMessageError("Merged: a rank for a second time")
