"""`SessionIds`: splits session ids among processes that share an address."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class SessionIds:
    """The session ids that an endpoint may assign: those whose low byte is `index`.

    A kernel filter on this byte hands every packet to the process with its connection, whatever
    address it comes from. A single process uses all ids.
    """

    index: int = 0
    count: int = 1

    def to_own(self, session_id: int) -> int:
        """Turn a random id into one of ours."""
        return session_id if self.count == 1 else session_id & ~0xFF | self.index

    def owns(self, session_id: int) -> bool:
        """Return whether an id is one of ours."""
        return self.count == 1 or session_id & 0xFF == self.index


ALL_SESSION_IDS: Final = SessionIds()
"""The ids of a single process."""
