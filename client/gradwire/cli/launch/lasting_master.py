"""A local master that is started again, at the same port and with the same keys, when it dies.

Its workers train on meanwhile, come back, and bring the run with them. A master that dies again and
again is given up. One that ends by itself with status 0 was told to, and is not started again.
"""

import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from time import monotonic
from typing import Final

from gradwire.cli.launch.ends import how
from gradwire.cli.launch.processes import MasterChild, MasterEndedError, local_master_process
from gradwire.errors import DeadlineError
from gradwire_udp import show_address, split_address

DEATHS_MAX: Final = 3
DEATHS_SECONDS: Final = 60.0
"""So many deaths in so short a time end the run."""

LAST_LINES: Final = 5
"""Lines of its log that are shown of a master that is given up."""

AGAIN: Final = {"GRADWIRE_NEW_RUN": "0"}
"""For a master that is started again: it goes on with the run that there is."""


class MasterLostError(MasterEndedError):
    """A master that was started here has ended for good; its last words are in the message."""

    def __init__(self, status: int, text: str, said: str) -> None:
        super().__init__(status)
        self.args = (f"{text}; its last words: {said or 'it has said nothing'}",)


class LastingMaster:
    """A local master, and those that take its place.

    Parameters
    ----------
    options : sequence of str
        Of ``gradwire master``, with its ``--listen`` and ``--http``.
    environ : mapping
        Variables for it.
    on_stderr, on_wait : callable
        As for `local_master_process`.
    tell : callable
        Gets a line about each death.
    clock : callable
        Returns seconds since any fixed moment.
    """

    def __init__(
        self,
        options: Sequence[str],
        environ: Mapping[str, str],
        on_stderr: Callable[[str], None],
        on_wait: Callable[[str], None],
        tell: Callable[[str], None],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._options = list(options)
        self._environ = dict(environ)
        self._on_stderr = on_stderr
        self._on_wait = on_wait
        self._tell = tell
        self._clock = clock
        self._deaths: deque[float] = deque(maxlen=DEATHS_MAX)
        self._last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._stack = AsyncExitStack()
        self.child: MasterChild

    async def start(self) -> None:
        """Start it for the first time; errors are those of `local_master_process`."""
        await self._start([])
        self._again = [
            *_places(self._options, self.child),
            *resuming(self._options, {**os.environ, **self._environ}),
        ]

    async def last(self) -> MasterLostError:
        """Start it again whenever it dies; return why it is given up in the end."""
        status = await self.child.child.wait()
        while status:
            self._deaths.append(self._clock())
            if self._dies_again_and_again():
                text = f"the master {how(status)}, {DEATHS_MAX} times within {DEATHS_SECONDS:g} s"
                return MasterLostError(status, text, self._said)
            self._tell(
                f"the master {how(status)}: it is started again at {self.child.address}, and the "
                "workers train on and come back"
            )
            await self.close()
            try:
                await self._start(self._again)
            except MasterEndedError as error:
                status = error.status
                continue
            except DeadlineError as error:
                return MasterLostError(1, str(error), self._said)
            self._tell(f"the master is back at {self.child.address}")
            status = await self.child.child.wait()
        return MasterLostError(0, "the master has ended, as it was told to", self._said)

    async def close(self) -> None:
        """End it."""
        stack, self._stack = self._stack, AsyncExitStack()
        await stack.aclose()

    # Private.

    async def _start(self, further: Sequence[str]) -> None:
        environ = self._environ | AGAIN if further else self._environ
        self.child = await self._stack.enter_async_context(
            local_master_process(
                [*self._options, *further],
                environ,
                self._note_line,
                self._on_wait,
                recovers=bool(further),
            )
        )

    @property
    def _said(self) -> str:
        return " / ".join(self._last_lines)

    def _note_line(self, line: str) -> None:
        self._last_lines.append(line)
        self._on_stderr(line)

    def _dies_again_and_again(self) -> bool:
        deaths = self._deaths
        return len(deaths) == DEATHS_MAX and deaths[-1] - deaths[0] <= DEATHS_SECONDS


@asynccontextmanager
async def lasting_master(
    options: Sequence[str],
    environ: Mapping[str, str],
    on_stderr: Callable[[str], None],
    on_wait: Callable[[str], None],
    tell: Callable[[str], None],
) -> AsyncIterator[LastingMaster]:
    """Run a master until the block ends, which awaits `LastingMaster.last` beside its work."""
    master = LastingMaster(options, environ, on_stderr, on_wait, tell)
    try:
        await master.start()
        yield master
    finally:
        await master.close()


def _places(options: Sequence[str], child: MasterChild) -> list[str]:
    """Return the options that make a master listen where the first one did: the last ones count."""
    places = ["--listen", _with_port(_last(options, "--listen"), child.address)]
    if child.http is not None:
        places += ["--http", _with_port(_last(options, "--http"), child.http)]
    return places


def _last(options: Sequence[str], name: str) -> str:
    """Return the value of an option that is there."""
    at = len(options) - 1 - list(reversed(options)).index(name)
    return options[at + 1]


def _with_port(wanted: str, announced: str) -> str:
    """Return an address with the port that the system chose, if it was to choose one."""
    host, port = split_address(wanted)
    return wanted if port else show_address((host, split_address(announced)[1]))


def resuming(options: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return the options that make a master go on with its checkpoints, if it writes any."""
    writes = "--checkpoint" in options or environ.get("GRADWIRE_CHECKPOINT")
    return ["--resume", "auto"] if writes else []
