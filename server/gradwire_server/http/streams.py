"""`Streams`: what happens, as server-sent events (WHATWG HTML, section 9.2), to many viewers.

All viewers of a run get the same bytes, twice a second, and more seldom where there are so many
viewers or workers that it would take the master too much time. Who reads slowly gets the next frame
when the last one is read, and is disconnected if that takes too long: 64 KiB and a frame wait for
each.
"""

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import Final

from aiohttp import web

from gradwire_server.http.api import PREFIX, no_run
from gradwire_server.http.documents import Documents
from gradwire_server.http.pages import Stopwatch, joined
from gradwire_server.http.server import SERVER

logger: Final = logging.getLogger("gradwire.http")

STREAM_PATH: Final = PREFIX + "stream"

EVERY_SECONDS: Final = 0.5

LOAD_MAX: Final = 0.05
"""Part of the time that may be spent on all streams."""

WRITE_SECONDS: Final = 1e-4
"""What it takes to hand a frame to a connection."""

VIEWERS_AT_ONCE: Final = 16
"""How many are handed a frame before datagrams have their turn."""

PAUSE_SECONDS_MAX: Final = 20.0
"""Longest time between two frames: a viewer takes a longer silence for a lost master."""

READ_SECONDS_MAX: Final = 10.0
"""A viewer that has not read a frame after so long is disconnected."""


class Channel:
    """The viewers of a run, or of the summary alone."""

    def __init__(self, run: str | None, documents: Documents) -> None:
        self.viewers: set[asyncio.Event] = set()
        """Each is set when there is a frame."""
        self.frame = b""
        """The last one: also for the next viewer to come."""
        self._run = run
        self._documents = documents
        self._journal = None if run is None else documents.journal(run)
        self._said = 0 if self._journal is None else self._journal.last
        """The number of the last event that viewers were told of."""

    async def work(self, channels: dict[str | None, "Channel"]) -> None:
        """Make frames as long as there are viewers."""
        while self.viewers:
            spent = Stopwatch()
            try:
                self.frame = await joined(self._parts(), spent)
            except Exception:
                logger.exception("a frame for viewers could not be made")
            seconds = spent.seconds + WRITE_SECONDS * len(self.viewers)
            for number, viewer in enumerate(list(self.viewers)):
                viewer.set()
                if number % VIEWERS_AT_ONCE == VIEWERS_AT_ONCE - 1:
                    await asyncio.sleep(0)
            pause = seconds * (len(channels) / LOAD_MAX - 1)
            await asyncio.sleep(min(max(pause, EVERY_SECONDS), PAUSE_SECONDS_MAX))
        del channels[self._run]

    def _parts(self) -> Iterator[bytes]:
        yield b"event: summary\ndata: "
        yield json.dumps(self._documents.summary()).encode()
        yield b"\n\n"
        if self._run is None:
            return
        journal = self._documents.journal(self._run)
        if journal is None:
            if self._documents.has(self._run):
                yield from self._said_of_run(self._run)
            yield b"event: over\ndata: null\n\n"
            return
        if journal is not self._journal:  # that of a new master, after an error of the last one
            self._journal, self._said = journal, 0
        yield from self._said_of_run(self._run)
        if journal.last > self._said:
            yield b"event: events\ndata: "
            yield from self._documents.events(self._run, self._said)
            yield b"\n\n"
            self._said = journal.last

    def _said_of_run(self, run: str) -> Iterator[bytes]:
        yield b"event: run\ndata: "
        yield from self._documents.run(run)
        yield b"\n\n"


class Streams:
    """Serves all viewers."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._channels: dict[str | None, Channel] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    @property
    def viewers(self) -> int:
        """How many there are."""
        return sum(len(channel.viewers) for channel in self._channels.values())

    @property
    def route(self) -> web.RouteDef:
        """The route of the stream."""
        return web.get(STREAM_PATH, self._serve, allow_head=False)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        """Send frames until the viewer goes."""
        run = request.query.get("run")
        if run is not None and not self._documents.has(run):
            raise no_run(run, self._documents.runs)
        request.app[SERVER].hold(request)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        viewer, channel = asyncio.Event(), self._channel(run)
        channel.viewers.add(viewer)
        try:
            await response.prepare(request)
            assert request.transport is not None
            request.transport.set_write_buffer_limits(high=0)  # a frame is written when it is read
            while not self._closing:
                viewer.clear()
                if channel.frame:
                    async with asyncio.timeout(READ_SECONDS_MAX):
                        await response.write(channel.frame)
                await viewer.wait()
        except (ConnectionError, TimeoutError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            channel.viewers.discard(viewer)
        return response

    def _channel(self, run: str | None) -> Channel:
        if run not in self._channels:
            channel = self._channels[run] = Channel(run, self._documents)
            task = asyncio.get_running_loop().create_task(channel.work(self._channels))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return self._channels[run]

    def close(self) -> None:
        """End all streams."""
        self._closing = True
        for task in self._tasks:
            task.cancel()
        for channel in self._channels.values():
            for viewer in channel.viewers:
                viewer.set()
