"""The daemon on loopback: what it announces, serves and refuses, and how it ends."""

import asyncio
import errno
import json
import logging
import os
import signal
import socket
import threading
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial
from importlib.metadata import version
from itertools import cycle
from pathlib import Path
from typing import Any, TypeAlias

import aiohttp
import numpy as np
import pytest

import gradwire
from gradwire_protocol import UsageError
from gradwire_server.checkpoints.folder import CheckpointFolder
from gradwire_server.config import MasterConfig
from gradwire_server.daemon.daemon import Addresses, Daemon
from gradwire_server.daemon.key_source import KeySource
from gradwire_server.daemon.listening import AddressInUseError
from gradwire_server.http.access import Access, Token
from gradwire_udp.files.checkpoints import names_in, read
from support.local_master import MasterProcess
from support.loops import LOOPS_BY_NAME
from support.tiers import variants
from support.waiting import BRIEF, SOON, until
from support.wording import naming

Announcement: TypeAlias = dict[str, Any]
LOOPS = pytest.mark.parametrize("kind", variants("uvloop", "asyncio"))
ANYWHERE = Addresses(listen="127.0.0.1:0", http="127.0.0.1:0")


Look = Callable[[Announcement], Awaitable[None]]


async def do_nothing(announcement: Announcement) -> None:
    pass


class Running:
    """Runs a daemon on an event loop of its own, for as long as a test looks at it.

    Parameters
    ----------
    capture : CaptureFixture
        Where its announcement is read from.
    """

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture
        self._out = ""

    def __call__(
        self,
        addresses: Addresses,
        look: Look = do_nothing,
        *,
        kind: str = "asyncio",
        end: int | None = signal.SIGTERM,
        **options: Any,
    ) -> Announcement:
        """Run a daemon, `look` at it, and end it with a signal unless it ends by itself.

        Returns
        -------
        dict
            What it has announced.
        """
        config = MasterConfig(checkpoint_seconds=BRIEF, recovery_seconds=0.0)

        async def run() -> Announcement:
            task = asyncio.create_task(Daemon(config, addresses, **options).run())
            await until(lambda: self._announced() or task.done(), "the announcement")
            if task.done():
                await task
            announcement: Announcement = json.loads(self._out)
            try:
                await look(announcement)
            finally:
                if end is not None:
                    os.kill(os.getpid(), end)
            await task
            return announcement

        with asyncio.Runner(loop_factory=LOOPS_BY_NAME[kind]) as runner:
            return runner.run(run())

    def _announced(self) -> bool:
        self._out += self._capture.readouterr().out
        return self._out.endswith("\n")


@pytest.fixture
def running(capsys: pytest.CaptureFixture[str]) -> Running:
    return Running(capsys)


async def get(announcement: Announcement, path: str, **headers: str) -> aiohttp.ClientResponse:
    """Return a page, with its body read."""
    url = f"http://{announcement['http']}{path}"
    async with aiohttp.ClientSession() as client, client.get(url, headers=headers) as response:
        await response.read()
        return response


async def get_json(announcement: Announcement, path: str) -> Any:
    return await (await get(announcement, path)).json()


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


# What it says and serves.


@LOOPS
def test_it_announces_in_one_line_of_json_where_it_can_be_reached(
    running: Running, kind: str
) -> None:
    async def look(announcement: Announcement) -> None:
        host, port = announcement["master"].split(":")
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other,
            pytest.raises(OSError, match="in use"),
        ):
            other.bind((host, int(port)))
        assert (await get_json(announcement, "/healthz"))["status"] == "ok"

    announcement = running(ANYWHERE, look, kind=kind)

    assert announcement.keys() == {"master", "http", "pid", "version"}
    assert announcement["pid"] == os.getpid()
    assert announcement["version"] == version("gradwire")


@LOOPS
def test_status_tells_of_the_run_and_workers_hear_why_it_ends(running: Running, kind: str) -> None:
    sessions: list[gradwire.Session] = []
    seen: list[Any] = []

    async def look(announcement: Announcement) -> None:
        seen.append(await get_json(announcement, "/api/v1/overview"))
        target = np.zeros((3, 4), np.float32)
        join = partial(gradwire.join, target, master=announcement["master"], threshold=0.5)
        session = await asyncio.to_thread(join)
        sessions.append(session)
        session.push(np.ones((3, 4), np.float32))
        await until(lambda: session.stats.updates_delivered == 1, "the master to have the update")
        seen.append(await get_json(announcement, "/api/v1/overview"))

    running(ANYWHERE, look, kind=kind)

    for each in seen:
        assert each.pop("unix_time") > each.pop("uptime_seconds") > 0
        del each["figures"]  # those of the first second come after it
    always: Announcement = {
        "status": "ok", "version": version("gradwire"), "draining": False, "denied": [], "over": [],
        "master": {"role": None, "in_charge": True, "term": 1, "other": None,
                   "standby_connected": False, "standby_behind": 0},
    }  # fmt: skip
    always["pid"] = os.getpid()
    assert seen[0] == {"connections": 0, "runs": [], **always}
    name = f"{socket.gethostname()}/{os.getpid()}"
    assert seen[1] == {
        "connections": 1,
        "runs": [
            {
                "name": "default",
                "finished": False,
                "parameters": 12,
                "mode": "sharing",
                "round": None,
                "workers": [{"rank": 0, "name": name, "phase": "live", "quarantined": False}],
                "observers": [],
                "versions": {"0": 1},
                "stopping": None,
                "items_paused": False,
                "epochs_granted": None,
                "works": [],
                "checkpoint": None,
            }
        ],
        **always,
    }
    with pytest.raises(gradwire.ConnectionLostError, match=naming("stopped", "SIGTERM")):
        sessions[0].step()


@pytest.mark.parametrize("token", [None, Token(b"correct-horse-battery")], ids=["open", "token"])
def test_http_for_everyone_without_a_token_says_what_it_does_not_serve(
    running: Running, caplog: pytest.LogCaptureFixture, token: Token | None
) -> None:
    announced = running(
        Addresses(listen="127.0.0.1:0", http="0.0.0.0:0"), access=Access(token=token)
    )

    assert warnings_in(caplog) == (
        [naming(announced["http"], "is /healthz:", "--http-token-file", "loopback")]
        if token is None
        else []
    )


@pytest.mark.parametrize(
    ("advertise", "shown"), [(None, "THIS-HOST:{port}"), ("127.0.0.1", "127.0.0.1:{port}")]
)
def test_an_insecure_master_on_every_address_warns_whatever_it_advertises(
    running: Running, caplog: pytest.LogCaptureFixture, advertise: str | None, shown: str
) -> None:
    addresses = Addresses(listen="0.0.0.0:0", http=None, advertise=advertise)

    with caplog.at_level(logging.INFO, "gradwire.daemon"):
        announced = running(addresses, keys=KeySource(insecure=True))

    port = announced["master"].split(":")[1]
    assert naming(f"GRADWIRE_MASTER={shown.format(port=port)}") in caplog.messages
    assert warnings_in(caplog) == [
        naming("INSECURE", f"port {port}", "gradwire keygen run.key", "--key-file run.key")
    ]


# Checkpoints.


def test_a_disk_that_is_full_is_counted_and_the_run_goes_on(
    running: Running,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def counted(announcement: Announcement, what: str) -> float:
        lines = (await (await get(announcement, "/metrics")).text()).splitlines()
        name = f'gradwire_checkpoints_{what}_total{{run="default"}} '
        return next(float(line[len(name) :]) for line in lines if line.startswith(name))

    async def look(announcement: Announcement) -> None:
        join = partial(gradwire.join, np.zeros(4, np.float32), master=announcement["master"])
        session = await asyncio.to_thread(partial(join, threshold=0.5))
        # Something changes however long it takes, and nothing outgrows the quantum.
        changes = cycle([np.ones(4, np.float32), -np.ones(4, np.float32)])
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)  # uvloop and sockets do not use it
            while await counted(announcement, "failed") < 2:
                session.push(next(changes))
        while not await counted(announcement, "written"):
            session.push(next(changes))
        await asyncio.to_thread(session.close)

    with closing(CheckpointFolder(tmp_path, 1)) as folder:
        running(ANYWHERE, look, folder=folder)

    assert naming("default", tmp_path, "No space left on device") in caplog.messages
    [name] = names_in(tmp_path)
    assert read(tmp_path / name).checkpoint.updates > 0
    assert [file.name for file in tmp_path.iterdir()] == [name], "nothing half is left"


def test_a_disk_that_never_answers_does_not_keep_it_from_ending(
    running: Running,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    answer = threading.Event()
    asked = threading.Event()

    def hang(*arguments: object, **options: object) -> None:
        asked.set()
        answer.wait(SOON)
        raise OSError(errno.EIO, "Input/output error")

    async def look(announcement: Announcement) -> None:
        join = partial(gradwire.join, np.zeros(4, np.float32), master=announcement["master"])
        session = await asyncio.to_thread(join)
        await until(asked.is_set, "the disk to be asked")
        await asyncio.to_thread(session.close)

    monkeypatch.setattr("gradwire_server.daemon.daemon.STOP_WRITING_SECONDS_MAX", BRIEF)
    with closing(CheckpointFolder(tmp_path, 1)) as folder:
        monkeypatch.setattr(folder, "write", hang)
        running(ANYWHERE, look, folder=folder)
        answer.set()

    assert naming("no checkpoint", f"{BRIEF} s") in caplog.messages


# What it refuses.


@LOOPS
@pytest.mark.parametrize(
    ("named", "bound", "addresses"),
    [
        (("UDP", "--listen"), socket.SOCK_DGRAM, lambda taken: Addresses(listen=taken, http=None)),
        (
            ("HTTP", "--http"),
            socket.SOCK_STREAM,
            lambda taken: Addresses(listen="127.0.0.1:0", http=taken),
        ),
    ],
    ids=["UDP", "HTTP"],
)
def test_an_address_in_use_names_the_option_to_change(
    running: Running,
    kind: str,
    named: tuple[str, str],
    bound: socket.SocketKind,
    addresses: Callable[[str], Addresses],
) -> None:
    with socket.socket(socket.AF_INET, bound) as other:
        other.bind(("127.0.0.1", 0))
        taken = f"127.0.0.1:{other.getsockname()[1]}"

        with pytest.raises(AddressInUseError, match=naming(named[0], taken, named[1])):
            running(addresses(taken), kind=kind)


@pytest.mark.parametrize(
    ("listen", "http", "named"),
    [
        ("203.0.113.77:0", None, ("UDP", "203.0.113.77:0")),
        ("127.0.0.1:0", "203.0.113.77:0", ("HTTP", "203.0.113.77:0")),
        ("127.0.0.1:x", None, ("127.0.0.1:x", "'x'", 0, 65535)),
        ("127.0.0.1:0", "127.0.0.1:x", ("127.0.0.1:x", "'x'", 0, 65535)),
    ],
)
def test_an_address_that_cannot_be_had_is_named(
    running: Running, listen: str, http: str | None, named: tuple[object, ...]
) -> None:
    with pytest.raises(UsageError, match=naming(*named)) as refused:
        running(Addresses(listen=listen, http=http), keys=KeySource(insecure=True))

    assert not isinstance(refused.value, AddressInUseError)


# How it ends.


@LOOPS
def test_a_callback_that_fails_ends_it_with_that_error(
    running: Running, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    def fail() -> None:
        raise LookupError("nobody has thought of this")

    async def look(announcement: Announcement) -> None:
        asyncio.get_running_loop().call_soon(fail)

    with (
        caplog.at_level(logging.INFO, "gradwire.daemon"),
        pytest.raises(LookupError, match="nobody has thought of this"),
    ):
        running(ANYWHERE, look, kind=kind, end=None)

    assert caplog.messages[-2:] == [
        naming("internal error"),
        naming("stopped", "internal error"),
    ]


def test_as_a_process_it_ends_with_status_0_on_sigterm_and_tells_its_workers() -> None:
    with MasterProcess() as master:
        session = gradwire.join(np.zeros(5, np.float32), master=master.address)

        status, out, err = master.stop(signal.SIGTERM)

    assert (status, out) == (0, "")
    assert "stopping: the master was stopped by SIGTERM" in err
    with pytest.raises(gradwire.ConnectionLostError, match=naming("stopped", "SIGTERM")):
        session.step()
