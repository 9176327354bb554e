"""`Lookup`, which finds the master by its name, and `Relookup`, which does so again later.

A name is a host, ``zk://…`` or ``dns+srv://…`` (`gradwire_udp.discovery`). A master can move: a
worker that dials it in vain has the name looked up again at each try.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from threading import Event, Lock, Thread
from time import monotonic
from typing import Any, Final

from gradwire.errors import GradwireError, UnreachableError
from gradwire.threads.waits import WaitNotice
from gradwire_udp import resolve_all, show_addresses, split_address
from gradwire_udp.discovery.announcement import MASTERS_MAX, Announcement, NotAnnouncedError
from gradwire_udp.discovery.places import Reader, place_of
from gradwire_udp.sockets import Destination

logger = logging.getLogger("gradwire.join")

AGAIN_SECONDS: Final = 1.0
"""Between two looks. A thousand workers that wait for a master ask a thousand times a second."""


@dataclass(frozen=True, slots=True)
class Found:
    """Where a name leads."""

    destinations: Sequence[Destination]
    """Addresses in the order to try them in."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Those that the master announces."""


class Lookup:
    """Finds a master by its name.

    Parameters
    ----------
    master : str
        The setting `master`. `UsageError` if it is not written as an address or a place.
    """

    def __init__(self, master: str) -> None:
        self.place = place_of(master)
        """None for an address, ``host:port``."""
        self._master = master

    @property
    def can_move(self) -> bool:
        """Whether the name may lead elsewhere later: an IP address leads nowhere else."""
        if self.place is not None:
            return True
        try:
            ip_address(split_address(self._master)[0])
        except ValueError:
            return True
        return False

    def shown(self, destinations: Sequence[Destination]) -> str:
        """Return the master for messages."""
        addresses = show_addresses(destinations)
        return addresses if self.place is None else f"{self.place.text} ({addresses})"

    def first(self, answer_seconds: float, start_seconds: float) -> Found:
        """Return where the name leads; wait until a master is announced there.

        Parameters
        ----------
        answer_seconds : float
            How long a place may be silent.
        start_seconds : float
            How long a place that answers may have no master.

        Raises
        ------
        UnreachableError
            If there is none in time, or the host is not known.
        UsageError
            If what is there is no announcement, or waiting cannot help.
        """
        if self.place is None:
            return Found(resolve_all(self._master))
        reader = self.place.open()
        try:
            announcement = self._wait(reader, answer_seconds, max(start_seconds, answer_seconds))
        finally:
            reader.close()
        found = Found(_destinations(announcement), announcement.settings)
        logger.info("%s: the master is at %s", self.place.text, " or ".join(announcement.masters))
        return found

    def again(self) -> Sequence[Destination]:
        """Return where the name leads now, as `first` does, without waiting for a master."""
        if self.place is None:
            return resolve_all(self._master)
        reader = self.place.open()
        try:
            return _destinations(reader.read())
        finally:
            reader.close()

    def _wait(self, reader: Reader, answer_seconds: float, start_seconds: float) -> Announcement:
        assert self.place is not None
        text, reason, pause = self.place.text, "", Event()
        began = heard_at = monotonic()
        notice = WaitNotice()

        def purpose() -> str:
            return f"a master to be announced at {text} ({reason})"

        notice.begin(purpose)
        while True:
            try:
                return reader.read()
            except NotAnnouncedError as error:
                reason, heard_at = str(error), monotonic()
            except UnreachableError as error:
                reason = str(error)
            now = monotonic()
            left = min(began + start_seconds, heard_at + answer_seconds) - now
            if left <= 0:
                raise UnreachableError(
                    f"no master is announced at {text} (waited {now - began:.1f} s; {reason}): "
                    f"{self.place.question}"
                )
            notice.look()
            pause.wait(min(AGAIN_SECONDS, left))


def _destinations(announcement: Announcement) -> list[Destination]:
    """Return the addresses of all masters; those that cannot be resolved are left out."""
    found: dict[Destination, None] = {}
    problem: GradwireError | None = None
    for master in announcement.masters[:MASTERS_MAX]:
        try:
            found |= dict.fromkeys(resolve_all(master))
        except UnreachableError as error:
            problem = error
    if problem is not None and not found:
        raise problem
    return list(found)


class Relookup:
    """Looks a name up again, on a thread of its own: the system may take long to resolve it.

    Parameters
    ----------
    on_found : callable
        Called on that thread with the addresses, whether or not they are others.
    """

    def __init__(self, lookup: Lookup, on_found: Callable[[Sequence[Destination]], None]) -> None:
        self._lookup = lookup
        self._on_found = on_found
        self._looks = Lock()
        self._next_at = monotonic() + AGAIN_SECONDS  # it was looked up a moment ago
        self._said = ""

    def request(self) -> None:
        """Look again, unless that is under way or was a moment ago."""
        now = monotonic()
        if now < self._next_at or not self._lookup.can_move:
            return
        if self._looks.acquire(blocking=False):
            self._next_at = now + AGAIN_SECONDS
            Thread(target=self._look, name="gradwire-lookup", daemon=True).start()

    def _look(self) -> None:
        try:
            self._on_found(self._lookup.again())
            self._said = ""
        except Exception as error:  # a library's own, too: the worker dials on
            if str(error) != self._said:
                self._said = str(error)
                logger.warning("%s; dialling the master where it was", error)
        finally:
            self._looks.release()
