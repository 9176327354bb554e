"""Threads for kernels, which run in parallel because they release the GIL."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

from gradwire_codecs.errors import CodecError

R = TypeVar("R")


class Threads:
    """The calling thread and `count` - 1 more, which start when they are first needed.

    They end with `close`, with the last reference to this object, or with the interpreter. A forked
    process starts its own.
    """

    def __init__(self, count: int) -> None:
        if count < 1:
            raise CodecError(f"threads={count}; it has to be 1 or more")
        self.count = count
        self._pool: ThreadPoolExecutor | None = None
        self._process = 0

    def run(self, works: Sequence[Callable[[], R]]) -> list[R]:
        """Return the results of all works, in their order; the first work runs in this thread.

        If a work or a signal raises, all works have ended before the exception leaves this method.
        """
        if len(works) == 1:  # even an empty `wait` takes time
            return [works[0]()]
        others: list[Future[R]] = []
        try:
            others.extend(self._executor().submit(work) for work in works[1:])
            first = works[0]()
        finally:
            wait(others)
        return [first, *(other.result() for other in others)]

    def close(self) -> None:
        """End the threads; `run` would start new ones."""
        pool, self._pool = self._pool, None
        if pool is not None and self._process == os.getpid():
            pool.shutdown()

    def _executor(self) -> ThreadPoolExecutor:
        if self._pool is None or self._process != os.getpid():
            self._pool = ThreadPoolExecutor(self.count - 1, "gradwire-codec")
            self._process = os.getpid()
        return self._pool
