"""`Streams`: what happens, as server-sent events (WHATWG HTML, section 9.2), to many viewers.

All viewers of a run get the same bytes, twice a second, and more seldom where there are so
many viewers, or workers, that it would take the master too much time. A viewer that does not read
is left out, and its connection is closed after a while, or at once where much waits for all of
them: 64 KiB and a frame may wait for each.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from time import perf_counter
from typing import Final

from aiohttp import web

from gradwire_server.http.api.documents import Documents
from gradwire_server.http.limits import STEP_SECONDS_MAX, HttpLimits
from gradwire_server.metrics import HttpRefusal, ServerMetrics

logger = logging.getLogger("gradwire.http")

EVERY_SECONDS: Final = 0.5

BACKLOG_SECONDS_MAX: Final = 30.0
"""A viewer that has read nothing for so long is disconnected."""

PAUSE_SECONDS_MAX: Final = 20.0
"""Time between frames, whatever they cost: a viewer takes a longer silence for a lost master."""

BYTES_PER_SECOND_MAX: Final = 16e6
"""Of all viewers together. What the kernel does not take at once is sent by the event loop later,
in time that is not counted here."""

BUFFERS_BYTES_MAX: Final = 2**25
"""Where more waits for all viewers of a run together, those that are behind are disconnected."""

BUFFER_BYTES_MAX: Final = 2**16
"""For a viewer for which more waits, no further frame is added."""

HEADERS: Final = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}


class Stopwatch:
    """Counts the time of a task, and has it make way for others."""

    def __init__(self) -> None:
        self._spent = 0.0
        self._began = perf_counter()

    @property
    def seconds(self) -> float:
        """The time of the task so far."""
        return self._spent + perf_counter() - self._began

    async def let_others(self) -> None:
        """Let the rest of the event loop run, if this goes on for some time."""
        if perf_counter() - self._began > STEP_SECONDS_MAX:
            self._spent = self.seconds
            await asyncio.sleep(0)
            self._began = perf_counter()


class Viewer:
    """One connection that is sent frames."""

    def __init__(self, response: web.StreamResponse, transport: asyncio.Transport) -> None:
        self.response = response
        self.transport = transport
        self.over = asyncio.Event()
        self.behind_since: float | None = None
        """Since when it reads too slowly."""


class Channel:
    """The viewers of a run, or of the overview alone.

    Parameters
    ----------
    run : str or None
    load_max : float
        Part of the time that may be spent on all channels.
    share : callable
        Returns which part of that, and of the bytes a second, is this one's.
    """

    def __init__(
        self,
        run: str | None,
        documents: Documents,
        metrics: ServerMetrics,
        load_max: float,
        share: Callable[[], float],
    ) -> None:
        self.viewers: dict[Viewer, None] = {}
        self._run = run
        self._documents = documents
        self._metrics = metrics
        self._load_max = load_max
        self._share = share
        self._journal = documents.journal(run)
        self._said = 0 if self._journal is None else self._journal.last
        """The number of the last event that viewers were told of."""
        self._last = b""
        """The last frame: for the next viewer to come."""
        self._task = asyncio.get_running_loop().create_task(self._work())

    async def close(self) -> None:
        """End all viewers."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        for viewer in self.viewers:
            viewer.over.set()

    async def add(self, viewer: Viewer) -> None:
        """Send a viewer the last frame, and the next ones."""
        self.viewers[viewer] = None
        if self._last:
            await viewer.response.write(self._last)

    async def _work(self) -> None:
        while True:
            spent, sent_bytes = Stopwatch(), 0
            try:
                self._last = await self._joined(self._frame_parts(), spent)
                events = await self._joined(self._event_parts(), spent)
                sent_bytes = await self._send(self._last + events, spent)
            except Exception:
                logger.exception("a frame for viewers could not be made")
            share = self._share()
            pause = max(
                EVERY_SECONDS,
                spent.seconds * (1 / (share * self._load_max) - 1),
                sent_bytes / (share * BYTES_PER_SECOND_MAX),
            )
            await asyncio.sleep(min(pause, PAUSE_SECONDS_MAX))

    async def _joined(self, parts: Iterator[bytes], spent: Stopwatch) -> bytes:
        made = []
        for part in parts:
            made.append(part)
            await spent.let_others()
        return b"".join(made)

    def _frame_parts(self) -> Iterator[bytes]:
        yield b"event: overview\ndata: "
        yield json.dumps(self._documents.overview()).encode()
        yield b"\n\n"
        if self._run is not None:
            if not self._documents.has(self._run):
                yield b"event: over\ndata: null\n\n"
                return
            yield b"event: run\ndata: "
            yield from self._documents.run_parts(self._run)
            yield b"\n\n"

    def _event_parts(self) -> Iterator[bytes]:
        journal = self._documents.journal(self._run)
        if self._run is None or journal is None:
            return
        if journal is not self._journal:  # that of a new master, after an error of the last one
            self._journal, self._said = journal, 0
        after, self._said = self._said, journal.last
        if journal.after(after):
            begin = b"event: events\ndata: "
            for part in self._documents.events_parts(self._run, after):
                yield begin + part
                begin = b""
            yield b"\n\n"

    async def _send(self, frame: bytes, spent: Stopwatch) -> int:
        """Send a frame to all viewers that read; return how many bytes that were."""
        sent_bytes = 0
        of_all = sum(viewer.transport.get_write_buffer_size() for viewer in self.viewers)
        for viewer in list(self.viewers):
            if viewer.transport.is_closing():
                self._end(viewer)
            elif (waiting := viewer.transport.get_write_buffer_size()) > BUFFER_BYTES_MAX or (
                waiting and of_all > BUFFERS_BYTES_MAX
            ):
                self._leave_out(viewer, at_once=of_all > BUFFERS_BYTES_MAX)
            else:
                viewer.behind_since = None
                try:
                    # This does not wait: see `Streams.serve`.
                    await viewer.response.write(frame)
                    sent_bytes += len(frame)
                except (ConnectionError, RuntimeError):
                    self._end(viewer)
            await spent.let_others()
        return sent_bytes

    def _leave_out(self, viewer: Viewer, *, at_once: bool) -> None:
        """Send a viewer nothing this time; disconnect it if it is behind for long, or `at_once`."""
        now = asyncio.get_running_loop().time()
        self._metrics.http_frames_dropped.inc()
        if viewer.behind_since is None:
            viewer.behind_since = now
        elif at_once or now - viewer.behind_since > BACKLOG_SECONDS_MAX:
            self._metrics.http_refused.labels(HttpRefusal.TOO_SLOW).inc()
            viewer.transport.abort()
            self._end(viewer)

    def _end(self, viewer: Viewer) -> None:
        self.viewers.pop(viewer, None)
        viewer.over.set()


class Streams:
    """Serves all viewers.

    Parameters
    ----------
    load_max : float
        Part of the time that may be spent on all of them.
    """

    def __init__(
        self,
        documents: Documents,
        metrics: ServerMetrics,
        *,
        load_max: float = HttpLimits().streams_load_max,
    ) -> None:
        self._documents = documents
        self._metrics = metrics
        self._load_max = load_max
        self._channels: dict[str | None, Channel] = {}
        metrics.http_viewers.set_function(lambda: len(self))

    def __len__(self) -> int:
        """Return the number of viewers."""
        return sum(len(channel.viewers) for channel in self._channels.values())

    async def serve(self, request: web.BaseRequest, run: str | None) -> web.StreamResponse:
        """Send frames until the viewer goes, or `close` is called."""
        response = web.StreamResponse(headers=HEADERS)
        response.force_close()
        try:
            await response.prepare(request)
        except ConnectionError:
            return response  # it has asked, and gone
        transport = request.transport
        if request.method == "HEAD" or transport is None:
            return response
        # Writing must never wait for a viewer: what one is sent is bounded before.
        transport.set_write_buffer_limits(high=2**30)
        viewer = Viewer(response, transport)
        channel = self._channels.get(run)
        if channel is None:
            channel = self._channels[run] = Channel(
                run, self._documents, self._metrics, self._load_max, self._share
            )
        try:
            with suppress(ConnectionError):
                await channel.add(viewer)
                await viewer.over.wait()
        finally:
            channel.viewers.pop(viewer, None)
            if not channel.viewers and self._channels.get(run) is channel:
                del self._channels[run]
                await channel.close()
        return response

    async def close(self) -> None:
        """End all streams."""
        for channel in list(self._channels.values()):
            await channel.close()

    def _share(self) -> float:
        return 1 / max(len(self._channels), 1)
