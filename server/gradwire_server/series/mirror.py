"""`Mirror`: what a master's standby is sent of what workers log, and what the standby makes of it.

The standby is sent all that there is when it comes, and then each message that the master takes. A
takeover loses those that are under way. A standby that takes them too slowly is sent all of it
again, once what was under way has arrived. So the bytes that wait for it have a bound.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final

from gradwire_protocol.errors import InvalidMessageError
from gradwire_protocol.limits import MIB
from gradwire_protocol.messages.checkpoint import LOGGED_BYTES_MAX
from gradwire_protocol.messages.link import Link
from gradwire_protocol.messages.operating.histograms import Histograms
from gradwire_protocol.messages.operating.mirrored import PART_BYTES, Passed, Saved
from gradwire_protocol.messages.operating.scalars import Logged
from gradwire_server.series.series import Series

IN_FLIGHT_MAX: Final = 4
"""Most messages that are not delivered: 1 MiB."""

WAITING_BYTES_MAX: Final = 8 * MIB
"""Most bytes of messages of workers that wait besides the parts: 80 KB of 100 workers each."""


class Mirror:
    """Sends what is logged in a run to a standby.

    Parameters
    ----------
    link : Link
        To the standby.
    series : Series
        Of the run.
    """

    def __init__(self, link: Link, series: Series, now: float) -> None:
        self._link = link
        self._series = series
        self._parts: Iterator[Saved] = _parts_of(series, now)
        self._waiting: deque[Passed] = deque()
        self._waiting_bytes = 0
        self._is_behind = False
        """Whether more came than may wait: then all of it is sent again."""
        self._in_flight: set[int] = set()
        """By number in the stream."""
        self._send(now)

    def pass_on(self, rank: int, worker: bytes, logged: Logged | Histograms, now: float) -> None:
        """Send what a worker has logged, and the series have taken."""
        passed = Passed(rank, worker, int(logged.KIND), logged.pack())
        self._waiting_bytes += len(passed.body)
        if self._waiting_bytes > WAITING_BYTES_MAX:
            self._is_behind = True
        if self._is_behind:
            self._waiting.clear()
            self._waiting_bytes = 0
        else:
            self._waiting.append(passed)
        self._send(now)

    def on_delivered(self, number: int, now: float) -> None:
        """Note that the standby has a message of the stream."""
        self._in_flight.discard(number)
        self._send(now)

    def _send(self, now: float) -> None:
        while len(self._in_flight) < IN_FLIGHT_MAX:
            if (message := next(self._parts, None)) is not None:
                self._in_flight.add(self._link.send_logged(message))
            elif self._waiting:
                passed = self._waiting.popleft()
                self._waiting_bytes -= len(passed.body)
                self._in_flight.add(self._link.send_logged(passed))
            elif self._is_behind and not self._in_flight:
                self._is_behind = False
                self._parts = _parts_of(self._series, now)
            else:
                break


class Mirrored:
    """The series of the run that another master serves, as they arrive."""

    def __init__(self) -> None:
        self.series: Series | None = None
        """None until all that there was has come."""
        self._saved = bytearray()

    def receive(self, message: Saved | Passed, now: float) -> None:
        """Add a part, or what a worker has logged.

        Raises `InvalidMessageError` if it contradicts itself.
        """
        if isinstance(message, Saved):
            if message.first:
                self._saved.clear()
            self._saved += message.body
            if len(self._saved) > LOGGED_BYTES_MAX:
                raise InvalidMessageError(f"Saved: more than {LOGGED_BYTES_MAX} bytes")
            if message.last:
                self.series = Series.restored(self._saved, now)
                self._saved = bytearray()
            return
        if self.series is None:
            raise InvalidMessageError("Passed before Saved")
        logged = message.unpacked()
        if isinstance(logged, Logged):
            self.series.add(message.rank, message.worker, logged, now, is_limited=False)
        else:
            self.series.add_histograms(message.rank, message.worker, logged, now, None)


def _parts_of(series: Series, now: float) -> Iterator[Saved]:
    """Yield all that was logged until now; it is copied at once."""
    packed = memoryview(b"".join(series.save(now).pieces()) if series else b"")
    ends = range(PART_BYTES, len(packed), PART_BYTES)
    starts = [0, *ends]
    return (
        Saved(start == 0, start == starts[-1], bytes(packed[start : start + PART_BYTES]))
        for start in starts
    )
