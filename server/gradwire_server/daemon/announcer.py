"""`Announcer`: keeps a master's announcement up, on a thread of its own.

The event loop says once a second what is to be announced; the thread puts it up where it differs,
and again where it is gone. The master serves on, whatever becomes of that. An announcement that
cannot be put up when the master starts, because another one stands there, ends the master.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from threading import Event, Thread
from time import monotonic
from typing import Any, Final

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gradwire_protocol import GradwireError, UnreachableError
from gradwire_server.daemon.announcing import Announcing, Wanted
from gradwire_server.daemon.board import AwaitedError
from gradwire_udp.discovery.reading import ANSWER_SECONDS

logger = logging.getLogger("gradwire.announcer")

LOOK_SECONDS: Final = 1.0
"""Between two looks. Whatever changes, an ensemble hears of it no more often."""

FIRST_SECONDS: Final = 5.0
"""How long a master that starts waits for a place that does not answer. Then it goes on, and its
announcement follows."""

CLOSE_SECONDS_MAX: Final = 3.0
"""For taking the announcement down."""


class Announcer(Collector):
    """Keeps up the announcement of a master.

    Parameters
    ----------
    describe : callable
        Returns what is to be announced; called on the event loop.
    find_address : callable
        Returns where workers reach the master. It may block for long.
    """

    def __init__(
        self,
        announcing: Announcing,
        describe: Callable[[], Wanted],
        find_address: Callable[[], str],
    ) -> None:
        self._place = announcing.place.text
        self._board = announcing.board()
        self._describe = describe
        self._find_address = find_address
        self._address: Future[str] | None = None
        """Found once, and looked for again as long as that fails."""
        self._wanted: Wanted = (None, {})
        self._stands = False
        self._problem: str | None = None
        self._first: asyncio.Future[None] | None = None
        self._is_settled = False
        """Whether the master knows what has come of the first look."""
        self._task: asyncio.Task[None] | None = None
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="gradwire-announcer", daemon=True)

    async def begin(self, stopping: asyncio.Event) -> None:
        """Put up the announcement; where its place does not answer, that follows later.

        Parameters
        ----------
        stopping : asyncio.Event
            Set when the master is to stop, and nothing has to be announced any more.

        Raises
        ------
        UsageError
            If another master is announced there, and lives; or the place takes none from us.
        """
        loop = asyncio.get_running_loop()
        self._first = loop.create_future()
        self._wanted = self._describe()
        self._thread.start()
        stops = loop.create_task(stopping.wait())
        try:
            await asyncio.wait((self._first, stops), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stops.cancel()
        if self._first.done():
            self._first.result()
        self._task = loop.create_task(self._describe_again())

    async def close(self) -> None:
        """Take down the announcement; waits for that, with a limit."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        self._stopping.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, CLOSE_SECONDS_MAX)

    def status(self) -> dict[str, Any]:
        """Return how it is, as values that JSON has."""
        return {"place": self._place, "announced": self._stands, "problem": self._problem}

    def collect(self) -> Iterator[Metric]:
        """Yield the metric family with its current value."""
        yield GaugeMetricFamily(
            "gradwire_announced",
            "With --announce: whether the announcement of this master stands there: 1, or 0.",
            value=self._stands,
        )

    async def _describe_again(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._wanted = self._describe()

    # On the thread.

    def _run(self) -> None:
        began = monotonic()
        try:
            while not self._stopping.is_set():
                try:
                    self._look()
                except AwaitedError as error:
                    self._note(str(error))
                except UnreachableError as error:
                    self._note(str(error))
                    if monotonic() - began >= FIRST_SECONDS:
                        self._settle(None)
                except GradwireError as error:
                    self._fail(error)
                except Exception as error:
                    logger.exception("internal error of the announcement at %s", self._place)
                    self._note(repr(error))
                    self._settle(None)
                else:
                    self._settle(None)
                self._stopping.wait(LOOK_SECONDS)
        finally:
            with suppress(Exception):  # the master ends anyway, and its announcement with it
                self._board.close()

    def _look(self) -> None:
        address = self._wait_for_address()
        announcement, workers = self._wanted
        if announcement is None:
            if self._stands:
                logger.info("not in charge any more: no longer announced at %s", self._place)
            self._stands = False
            self._board.withdraw()
            self._problem = None
            return
        if not announcement.master:
            announcement = replace(announcement, master=address)
        self._board.post(announcement, workers)
        if not self._stands:
            logger.info("announced at %s: %s", self._place, announcement.master)
        self._stands, self._problem = True, None

    def _wait_for_address(self) -> str:
        """Return where workers reach the master; the system may resolve names for minutes."""
        if self._address is None:
            self._address = Future()
            Thread(target=self._look_up, args=(self._address,), daemon=True).start()
        try:
            return self._address.result(ANSWER_SECONDS)
        except TimeoutError:
            raise UnreachableError("the name of its server is not resolved in time") from None
        except GradwireError:
            self._address = None
            raise

    def _look_up(self, found: Future[str]) -> None:
        try:
            found.set_result(self._find_address())
        except Exception as error:  # for the thread that waits
            found.set_exception(error)

    def _note(self, problem: str) -> None:
        """Say what is wrong, once."""
        if problem != self._problem:
            logger.warning("not announced at %s: %s; the master serves on", self._place, problem)
        self._stands, self._problem = False, problem

    def _fail(self, error: GradwireError) -> None:
        """End a master that has just started; one that serves goes on."""
        if self._is_settled:
            self._note(str(error))
        self._settle(error)

    def _settle(self, error: GradwireError | None) -> None:
        """Let the master go on, or end it, if it still waits for the first announcement."""
        if self._is_settled:
            return
        self._is_settled = True
        first = self._first
        assert first is not None

        def settle() -> None:
            if first.done():
                return
            if error is None:
                first.set_result(None)
            else:
                first.set_exception(error)

        with suppress(RuntimeError):  # the event loop is closed
            first.get_loop().call_soon_threadsafe(settle)
