"""`Search`, which waits until a master is announced, and `Watch`, which looks again later.

Both read on a thread of their own: a name server or an ensemble can keep a thread waiting for
longer than it was told to.
"""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Event, Lock, Thread
from time import monotonic
from typing import Final

from gradwire_protocol import UnreachableError
from gradwire_protocol.messages.admission import split_masters
from gradwire_udp.discovery.announcement import Announcement
from gradwire_udp.discovery.places import Place
from gradwire_udp.discovery.reading import NotAnnouncedError
from gradwire_udp.discovery.srv import SrvPlace

logger = logging.getLogger("gradwire.discovery")

AGAIN_SECONDS: Final = 1.0
"""Between two looks. A thousand workers that wait for a master ask a thousand times a second."""

LOOK_SECONDS: Final = 10.0
"""How long to look again: a file whose master has another clock has changed by then."""

GRACE_SECONDS: Final = 5.0
"""How much longer than its deadlines a search may take, where a library keeps it."""


class Search:
    """Waits until a master is announced.

    Parameters
    ----------
    answer_seconds : float
        How long to wait for the place to answer, from its last answer on.
    start_seconds : float
        How long to wait for a master to be announced where the place answers.
    """

    def __init__(self, place: Place, *, answer_seconds: float, start_seconds: float) -> None:
        self._place = place
        self._answer_seconds = answer_seconds
        self._start_seconds = max(start_seconds, answer_seconds)
        self._reason = ""
        self._is_over = Event()
        self._found: Future[Announcement] = Future()

    @property
    def purpose(self) -> str:
        """What this waits for."""
        reason = f" ({self._reason})" if self._reason else ""
        return f"a master to be announced at {self._place.text}{reason}"

    def run(self) -> Announcement:
        """Return the announcement.

        Raises
        ------
        UnreachableError
            If there is none in time.
        UsageError
            If what is there is no announcement, or waiting cannot help.
        """
        Thread(target=self._run, name="gradwire-search", daemon=True).start()
        try:
            return self._found.result(self._start_seconds + self._answer_seconds + GRACE_SECONDS)
        except TimeoutError:
            raise self._error(self._answer_seconds) from None
        finally:
            self._is_over.set()

    def read(self) -> Announcement:
        """Do the same on this thread, which a library may keep for longer than the deadlines."""
        self._run()
        return self._found.result()

    def _run(self) -> None:
        try:
            reader = self._place.open()
        except Exception as error:  # for the thread that waits
            self._found.set_exception(error)
            return
        try:
            self._found.set_result(self._read(reader.read))
        except Exception as error:
            self._found.set_exception(error)
        finally:
            reader.close()  # the waiting thread has the result by then: a goodbye may take seconds

    def _read(self, read: Callable[[float], Announcement]) -> Announcement:
        began = monotonic()
        silent_since: float | None = began
        while True:
            try:
                return read(self._answer_seconds)
            except NotAnnouncedError as error:
                silent_since, end = None, began + self._start_seconds
                self._reason = str(error)
            except UnreachableError as error:
                if silent_since is None:
                    silent_since = monotonic()
                end = min(silent_since + self._answer_seconds, began + self._start_seconds)
                self._reason = str(error)
            left = end - monotonic()
            if left <= 0 or self._is_over.wait(min(AGAIN_SECONDS, left)):
                raise self._error(round(end - began, 1))

    def _error(self, seconds: float) -> UnreachableError:
        return UnreachableError(
            f"no master is announced at {self._place.text} (waited {seconds:g} s"
            f"{f'; {self._reason}' if self._reason else ''}): {self._place.question}"
        )


class Watch:
    """Looks a master up again, when asked to, for a worker that dials it in vain.

    Parameters
    ----------
    number : int
        Which of the masters that share the parameters it is.
    found : Announcement
        What was found the last time.
    """

    def __init__(self, place: Place, number: int, found: Announcement) -> None:
        self.on_moved: Callable[[Sequence[str]], None] = lambda masters: None
        """Called on another thread with the addresses, where they have changed."""
        self._place = place
        self._number = number
        self._masters = masters_of(found, number)
        self._looks = Lock()
        self._next_at = 0.0
        self._said = ""

    @property
    def others(self) -> tuple[str, ...]:
        """Where else the master may be."""
        return self._masters[1:]

    def request(self) -> None:
        """Look again, on another thread, unless that is under way or was a moment ago."""
        now = monotonic()
        if now < self._next_at or not self._looks.acquire(blocking=False):
            return
        self._next_at = now + AGAIN_SECONDS
        Thread(target=self._look, name="gradwire-lookup", daemon=True).start()

    def _look(self) -> None:
        try:
            search = Search(self._place, answer_seconds=LOOK_SECONDS, start_seconds=LOOK_SECONDS)
            masters = masters_of(search.read(), self._number)
            self._said = ""
        except Exception as error:  # a library's own, too: the worker dials on
            if str(error) != self._said:
                self._said = str(error)
                logger.warning("%s: %s; dialling the master where it was", self._place.text, error)
            return
        finally:
            self._looks.release()
        if masters and not self._is_same(masters):
            logger.info("the master is at %s now, says %s", masters[0], self._place.text)
            self._masters = masters
            self.on_moved(masters)

    def _is_same(self, masters: Sequence[str]) -> bool:
        """Return whether they are those of the last time; chance orders those of SRV records."""
        if isinstance(self._place, SrvPlace):
            return set(masters) == set(self._masters)
        return masters == self._masters


def masters_of(found: Announcement, number: int) -> tuple[str, ...]:
    """Return the addresses of one of the masters that share the parameters, the first one first."""
    masters = split_masters(found.master)
    if number >= len(masters):
        return ()
    return (masters[number].address, *(found.others if len(masters) == 1 else ()))
