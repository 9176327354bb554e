"""`SessionIds`: which session ids are whose, where several processes share an address."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class SessionIds:
    """Which part of the session ids an endpoint gives out: those whose low byte is `index`.

    A kernel that looks at this byte hands every packet to the process that knows its connection,
    whatever address it comes from. Where there is one process, all ids are its own.
    """

    index: int = 0
    count: int = 1

    def to_own(self, session_id: int) -> int:
        """Return one of our ids for a random one."""
        return session_id if self.count == 1 else session_id & ~0xFF | self.index

    def owns(self, session_id: int) -> bool:
        """Return whether an id is one of ours."""
        return self.count == 1 or session_id & 0xFF == self.index


WHOLE: Final = SessionIds()
"""Where there is one process."""
