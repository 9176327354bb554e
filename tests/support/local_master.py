"""A real master on loopback: on a thread of the test's process, or as a process of its own."""

import asyncio
import json
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO, Any, Self

from gradwire import Session
from gradwire_protocol import Connection, Event, Keyring, MessageReceived
from gradwire_protocol.messages.link import Link, Message
from gradwire_server.config import MasterConfig
from gradwire_server.daemon.listening import Listening, Transport
from gradwire_server.master.master import Master
from gradwire_server.metrics import ServerMetrics
from gradwire_server.runs.runs import Runs
from gradwire_server.series.series import Series
from gradwire_udp import Application, new_event_loop, show_address
from support.processes import Running
from support.runs import value_of
from support.waiting import SOON, wait_until

GOODBYE_SECONDS = 0.1
"""On loopback the first goodbye is heard; nobody has to wait for the last one."""


def free_address() -> str:
    """Return an address on loopback where nobody listens."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{sock.getsockname()[1]}"


class Answering:
    """In place of a master, something that answers every message as a test says.

    Parameters
    ----------
    answer : callable
        Called with the link and each message.
    """

    def __init__(self, answer: Callable[[Link, Message], None]) -> None:
        self._answer = answer
        self._links: dict[Connection, Link] = {}

    def handle_event(self, connection: Connection, event: Event, now: float) -> None:
        link = self._links.setdefault(connection, Link(connection))
        if isinstance(event, MessageReceived):
            for message in link.receive(event):
                self._answer(link, message)

    def handle_timer(self, now: float) -> None:
        pass

    def next_timer(self) -> float | None:
        return None


class LocalMaster:
    """A master on a thread of its own: what a daemon consists of, but for signals and HTTP.

    Parameters
    ----------
    config : MasterConfig
    application : Application
        Something else to run in place of a master.
    transport, listen : str
        What it listens to, and where.
    keyring : Keyring, optional
        Whom it lets in.
    """

    address: str
    """``host:port`` where it listens."""

    def __init__(
        self,
        config: MasterConfig | None = None,
        *,
        application: Application | None = None,
        transport: Transport = "auto",
        listen: str = "127.0.0.1:0",
        keyring: Keyring | None = None,
    ) -> None:
        self.config = config or MasterConfig()
        self.runs = Runs(self.config, ServerMetrics())
        self.listening = Listening(self.config, transport, keyring)
        self.sessions: list[Session] = []
        """Those that it closes before it ends."""
        self._listen = listen
        self._application = application or self.runs
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="local-master", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(SOON)
        return self

    def __exit__(self, *exception: object) -> None:
        for session in self.sessions:
            session.close()
        self.stop("the test is over")
        assert self._failure is None, f"the master failed: {self._failure!r}"

    @property
    def master(self) -> Master:
        """The master of the first run."""
        return self.runs.first

    @property
    def series(self) -> Series:
        """What the workers of the first run log; it stays when the run is over."""
        assert self.master.series is not None
        return self.master.series

    def stop(self, reason: str) -> None:
        """Tell all workers why, and end."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop, reason)
        self._thread.join(SOON)
        assert not self._thread.is_alive()

    @contextmanager
    def held_up(self) -> Iterator[None]:
        """Let the master do nothing at all inside the block: it neither hears nor answers."""
        holding, release = threading.Event(), threading.Event()

        def hold() -> None:
            holding.set()
            release.wait(SOON)

        self._loop.call_soon_threadsafe(hold)
        assert holding.wait(SOON)
        try:
            yield
        finally:
            release.set()

    def sample(self, name: str, labels: Mapping[str, str] | None = None) -> float:
        """Return the value of a metric; 0 where it was never counted."""
        return value_of(self.runs, name, labels) or 0.0

    def wait_for_workers(self, n: int) -> None:
        """Wait until so many workers take part."""
        wait_until(lambda: self.sample("gradwire_workers") == n, f"{n} workers at the master")

    # On the thread.

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._on_exception)
        self._stopping = asyncio.Event()
        self._drivers = self.listening.open(self._listen, self._application, self._loop)
        self.address = show_address(self.listening.address)
        self._ready.set()
        await self._stopping.wait()
        if self._told:
            await self._drivers.wait_quiet(GOODBYE_SECONDS)
        self._drivers.close()

    def _stop(self, reason: str) -> None:
        self._told = len(self.master.roster) > 0
        self.listening.stop_accepting()
        self.runs.stop(reason, self._drivers.now())
        self._drivers.turn()
        self._stopping.set()

    def _on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._failure = context.get("exception") or RuntimeError(context["message"])
        logging.getLogger("tests.master").error("the master failed", exc_info=self._failure)


class MasterProcess:
    """``gradwire master`` as a process of its own, at addresses that are free.

    Unless an option says otherwise it does not wait for workers of an earlier one.

    Parameters
    ----------
    options : str
        Of the command, besides the addresses.
    listen : str
        Where it listens.
    prefix : sequence of str
        What to put before the command: another program that runs it.
    log : file, optional
        Where its log goes; without one, `wait` and `stop` return it, and it has to be short.
    """

    def __init__(
        self,
        *options: str,
        listen: str = "127.0.0.1:0",
        prefix: Sequence[str] = (),
        log: IO[str] | None = None,
    ) -> None:
        command = [*prefix, sys.executable, "-m", "gradwire", "master"]
        command += ["--listen", listen, "--http", "127.0.0.1:0", "--recovery-seconds", "0"]
        command += options
        self._process = Running(command, stderr=log or subprocess.PIPE)
        with ExitStack() as stack:
            stack.callback(self._process.end)
            announced = self._process.read_line("a master's announcement")
            self.announcement: dict[str, Any] = json.loads(announced or "{}")
            stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.end()

    @property
    def address(self) -> str:
        """``host:port`` where it listens."""
        return str(self.announcement["master"])

    @property
    def http(self) -> str:
        """``host:port`` of its HTTP side."""
        return str(self.announcement["http"])

    def signal(self, number: int) -> None:
        """Send it a signal, and go on."""
        self._process.send_signal(number)

    def stop(self, number: int) -> tuple[int, str, str]:
        """Send it a signal; return its exit status and the rest of what it wrote."""
        self._process.send_signal(number)
        return self.wait()

    def wait(self) -> tuple[int, str, str]:
        """Wait for its end; return its exit status and the rest of what it wrote."""
        out, err = self._process.communicate()
        return self._process.returncode, out, err
