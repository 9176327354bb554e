"""Decoding of updates, on a thread beside the event loop.

An update is passed on only after it was decoded, and decoding is most of the work: some
milliseconds for 300 KB, in which dozens of other datagrams come. So large updates are decoded on a
thread of their own; the compiled loops release the GIL, so the event loop runs meanwhile. Updates
of one worker keep their order; small ones of other workers do not wait for large ones.
"""

from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Protocol, TypeAlias

from gradwire_codecs import MalformedUpdateError, Update, decode

Decoded: TypeAlias = Update | MalformedUpdateError
"""An update, or the error in it."""

INLINE_BYTES_MAX: Final = 16_384
"""Above this size, decoding takes longer than handing an update to the thread and back."""


class Decoder(Protocol):
    """Decodes updates, at once or later."""

    def decode(
        self, origin: int, body: bytes, elements: int, done: Callable[[Decoded], None]
    ) -> None:
        """Decode an update and call `done`, for the updates of an origin in order.

        `done` is called on this thread: before this returns, or in `deliver` or `drain`. `elements`
        is the length of the vector that the update has to fit.
        """

    def deliver(self) -> None:
        """Call `done` for the updates that have been decoded meanwhile."""

    def drain(self, origin: int | None = None) -> None:
        """Wait until all updates, or all of one origin, are decoded, and deliver them."""

    def close(self) -> None:
        """Drop the updates that are not decoded."""


class InlineDecoder:
    """Decodes at once."""

    def decode(
        self, origin: int, body: bytes, elements: int, done: Callable[[Decoded], None]
    ) -> None:
        """Decode and call `done`."""
        done(_decoded(body, elements))

    def deliver(self) -> None:
        """Do nothing: no update waits."""

    def drain(self, origin: int | None = None) -> None:
        """Do nothing: no update waits."""

    def close(self) -> None:
        """Do nothing: no update waits."""


class ThreadDecoder:
    """Decodes large updates on a thread. The credit of the workers bounds the queue.

    The thread calls `on_ready` after each update: `deliver` has something to do.
    """

    def __init__(self, on_ready: Callable[[], None]) -> None:
        self._on_ready = on_ready
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="gradwire-decode")
        self._waiting: deque[tuple[int, Future[Decoded], Callable[[Decoded], None]]] = deque()
        self._of_origin: Counter[int] = Counter()

    def decode(
        self, origin: int, body: bytes, elements: int, done: Callable[[Decoded], None]
    ) -> None:
        """Decode a small update at once, and a large one on the thread."""
        if len(body) <= INLINE_BYTES_MAX and not self._of_origin[origin]:
            done(_decoded(body, elements))
            return
        future = self._executor.submit(_decoded, body, elements)
        self._of_origin[origin] += 1
        self._waiting.append((origin, future, done))
        future.add_done_callback(lambda _: self._on_ready())

    def deliver(self) -> None:
        """Call `done` for the updates that have been decoded meanwhile."""
        while self._waiting and self._waiting[0][1].done():
            self._deliver(0)

    def drain(self, origin: int | None = None) -> None:
        """Wait until all updates, or all of one origin, are decoded, and deliver them.

        A `done` that is called here may call this again, for any origin.
        """
        if origin is None:
            while self._waiting:
                self._deliver(0)
        else:
            while self._of_origin[origin]:
                self._deliver([of for of, _, _ in self._waiting].index(origin))

    def close(self) -> None:
        """Drop the updates that are not decoded."""
        self._waiting.clear()
        self._executor.shutdown(cancel_futures=True)

    def _deliver(self, place: int) -> None:
        origin, future, done = self._waiting[place]
        del self._waiting[place]
        self._of_origin[origin] -= 1
        done(future.result())


def _decoded(body: bytes, elements: int) -> Decoded:
    try:
        return decode(body, elements)
    except MalformedUpdateError as error:
        return error
