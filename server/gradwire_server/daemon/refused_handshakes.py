"""`RefusedHandshakes`: says in the log which peers are refused, and why.

A master answers no handshake without a key of its run, and tells such a worker nothing. Its
operator should still see that somebody tries. An attacker could fill a disk with lines, so there is
one for each reason at most every `LINE_SECONDS`, with a count.
"""

import logging
from collections.abc import Hashable
from typing import Final

from gradwire_protocol.counters import Counters, Drop, RefusedInit
from gradwire_protocol.crypto.keys import FINGERPRINT_BYTES

logger = logging.getLogger("gradwire.daemon")

LINE_SECONDS: Final = 30.0
"""Between two lines of one reason."""

LOOK_SECONDS: Final = 1.0
"""Between two looks at the counters."""


class RefusedHandshakes:
    """Compares the counters of a master's endpoints with those of the last look.

    Parameters
    ----------
    has_keys : bool
        Whether the master has keys.
    """

    def __init__(self, counters: Counters, *, has_keys: bool) -> None:
        self._counters = counters
        self._said: dict[Drop, tuple[int, float]] = {}
        """By reason: how many there were at the last line, and when that was."""
        self._texts = {
            Drop.OTHER_SUITE: "without a key, which this master asks for"
            if has_keys
            else "with a key, and this master has none (--key-file)",
            Drop.UNKNOWN_KEY: "with a key of another run",
            Drop.DENIED: "with a name that is denied",
            Drop.REPLAYED: "that are no newer than the last one of the same key: two processes may "
            "have it, or a clock has been set back",
        }

    def look(self, now: float) -> None:
        """Log what has been refused since the last line."""
        for reason, text in self._texts.items():
            count = self._counters.drops[reason]
            before, at = self._said.get(reason, (0, -LINE_SECONDS))
            if count > before and now - at >= LINE_SECONDS:
                self._said[reason] = count, now
                # Not as a value: of lines with one text, the log shows one in a second.
                line = f"refused %d handshake datagrams {text}%s"
                logger.warning(line, count - before, _one_of(self._counters.refused.get(reason)))
                self._counters.refused.pop(reason, None)


def _one_of(refused: RefusedInit | None) -> str:
    """Return where one of them came from, if this process of the master had any."""
    if refused is None:
        return ""
    named = f", name {refused.name}" if refused.name else ""
    run = refused.key_id[1 : 1 + FINGERPRINT_BYTES]
    key = f", run key {run.hex()}" if any(refused.key_id) else ""
    return f"; one of them from {_shown(refused.address)}{named}{key}"


def _shown(address: Hashable) -> str:
    return ":".join(map(str, address[:2])) if isinstance(address, tuple) else str(address)
