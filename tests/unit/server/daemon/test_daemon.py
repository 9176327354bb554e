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
from gradwire_protocol import UnreachableError, UsageError
from gradwire_server.checkpoints.folder import CheckpointFolder
from gradwire_server.config import MasterConfig
from gradwire_server.daemon.daemon import Addresses, Daemon
from gradwire_server.daemon.key_source import KeySource
from gradwire_server.daemon.listening import AddressInUseError
from gradwire_server.http.access import Access, Token
from gradwire_udp import new_event_loop
from gradwire_udp.files.checkpoints import names_in, read
from support.local_master import MasterProcess
from support.tiers import variants
from support.waiting import until
from support.wording import naming

Announcement: TypeAlias = dict[str, Any]
LOOPS = pytest.mark.parametrize("kind", variants("uvloop", "asyncio"))
ANYWHERE = Addresses(listen="127.0.0.1:0", http="127.0.0.1:0")
CHECKPOINT_SECONDS = 0.02


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
        look: Callable[[Announcement], Awaitable[None]],
        *,
        kind: str = "asyncio",
        end: int | None = signal.SIGTERM,
        keys: KeySource | None = None,
        access: Access | None = None,
        folder: CheckpointFolder | None = None,
    ) -> None:
        """Run a daemon, `look` at it, and end it with a signal unless it ends by itself."""
        with asyncio.Runner(loop_factory=partial(new_event_loop, kind)) as runner:
            runner.run(self._run(addresses, look, end, keys, access, folder))

    async def _run(
        self,
        addresses: Addresses,
        look: Callable[[Announcement], Awaitable[None]],
        end: int | None,
        keys: KeySource | None,
        access: Access | None,
        folder: CheckpointFolder | None,
    ) -> None:
        config = MasterConfig(checkpoint_seconds=CHECKPOINT_SECONDS, recovery_seconds=0.0)
        daemon = Daemon(config, addresses, access, keys, folder=folder)
        task = asyncio.create_task(daemon.run())
        await until(lambda: self._announced() or task.done(), "the announcement")
        if task.done():
            await task
        try:
            await look(json.loads(self._out))
        finally:
            if end is not None:
                os.kill(os.getpid(), end)
        await task

    def _announced(self) -> bool:
        self._out += self._capture.readouterr().out
        return self._out.endswith("\n")


@pytest.fixture
def running(capsys: pytest.CaptureFixture[str]) -> Running:
    return Running(capsys)


async def do_nothing(announcement: Announcement) -> None:
    pass


async def get_json(announcement: Announcement, path: str) -> Any:
    url = f"http://{announcement['http']}{path}"
    async with aiohttp.ClientSession() as client, client.get(url) as response:
        return await response.json()


# What it says and serves.


@LOOPS
def test_it_announces_in_one_line_of_json_where_it_can_be_reached(
    running: Running, kind: str
) -> None:
    seen: list[Announcement] = []

    async def look(announcement: Announcement) -> None:
        seen.append(announcement)
        host, port = announcement["master"].split(":")
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other,
            pytest.raises(OSError, match="in use"),
        ):
            other.bind((host, int(port)))
        assert (await get_json(announcement, "/healthz"))["status"] == "ok"

    running(ANYWHERE, look, kind=kind)

    [announcement] = seen
    assert announcement.keys() == {"master", "http", "pid", "version"}
    assert announcement["pid"] == os.getpid()
    assert announcement["version"] == version("gradwire")


@LOOPS
def test_status_tells_of_the_run_and_workers_hear_why_it_ends(running: Running, kind: str) -> None:
    sessions: list[gradwire.Session] = []
    seen: list[Any] = []

    async def look(announcement: Announcement) -> None:
        seen.append(await get_json(announcement, "/status"))
        target = np.zeros((3, 4), np.float32)
        join = partial(gradwire.join, target, master=announcement["master"], threshold=0.5)
        session = await asyncio.to_thread(join)
        sessions.append(session)
        session.push(np.ones((3, 4), np.float32))
        await until(lambda: session.stats.updates_delivered == 1, "the master to have the update")
        status = await get_json(announcement, "/status")
        while status["run"] is None:  # the page of before is good for some milliseconds
            status = await get_json(announcement, "/status")
        seen.append(status)

    running(ANYWHERE, look, kind=kind)

    nobody: Announcement = {"observers": [], "draining": False, "denied": [], "finished": False,
                            "checkpoint": None, "master": {
                                "role": None, "in_charge": True, "term": 1, "other": None,
                                "standby_connected": False, "standby_behind": 0,
                            }}  # fmt: skip
    nothing: Announcement = {"run": None, "parameters": None, "workers": [], "versions": {}}
    nothing["damaged_blocks"] = []
    alone = [{"pid": os.getpid(), "connections": 0}]
    assert seen[0] == {
        "status": "ok", "version": version("gradwire"), "processes": alone, **nothing, **nobody,
    }  # fmt: skip
    name = f"{socket.gethostname()}/{os.getpid()}"
    assert seen[1] == {
        "status": "ok",
        "version": version("gradwire"),
        "processes": [{"pid": os.getpid(), "connections": 1}],
        "run": "default",
        "parameters": 12,
        "damaged_blocks": [],
        "workers": [{"rank": 0, "name": name, "phase": "live", "quarantined": False}],
        "versions": {"0": 1},
        **nobody,
    }
    with pytest.raises(gradwire.ConnectionLostError, match=naming("stopped", "SIGTERM")):
        sessions[0].step()


def test_metrics_are_those_of_the_master_and_of_its_socket(running: Running) -> None:
    bodies: list[str] = []

    async def look(announcement: Announcement) -> None:
        url = f"http://{announcement['http']}/metrics"
        async with aiohttp.ClientSession() as client, client.get(url) as response:
            bodies.append(await response.text())

    running(ANYWHERE, look)

    samples = dict(line.rsplit(" ", 1) for line in bodies[0].splitlines() if line[0] != "#")
    assert samples["gradwire_joins_total"] == "0.0"
    assert samples["gradwire_datagrams_received_total"] == "0.0"
    assert samples['gradwire_datagrams_dropped_total{reason="short"}'] == "0.0"
    assert samples[f'gradwire_build_info{{version="{version("gradwire")}"}}'] == "1.0"
    assert "process_resident_memory_bytes" in samples


def test_with_a_token_the_status_is_only_for_those_who_have_it(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "correct-horse-battery"
    statuses: list[int] = []

    async def look(announcement: Announcement) -> None:
        url = f"http://{announcement['http']}/status"
        for headers in ({}, {"Authorization": f"Bearer {secret}"}):
            async with aiohttp.ClientSession() as client, client.get(url, headers=headers) as got:
                statuses.append(got.status)

    with caplog.at_level(logging.DEBUG):
        running(ANYWHERE, look, access=Access(token=Token(secret.encode())))

    assert statuses == [401, 200]
    assert secret not in caplog.text


@pytest.mark.parametrize(
    ("access", "pages"),
    [(Access(), "/healthz"), (Access(public_metrics=True), "/healthz and /metrics")],
)
def test_http_for_everyone_without_a_token_says_what_it_does_not_serve(
    running: Running, caplog: pytest.LogCaptureFixture, access: Access, pages: str
) -> None:
    seen: list[Announcement] = []

    async def look(announcement: Announcement) -> None:
        seen.append(announcement)

    running(Addresses(listen="127.0.0.1:0", http="0.0.0.0:0"), look, access=access)

    assert [r.message for r in caplog.records if r.levelname == "WARNING"] == [
        naming(seen[0]["http"], f"is {pages}:", "--http-token-file", "loopback")
    ]


def test_http_with_a_token_is_for_everyone_without_a_warning(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    access = Access(token=Token(b"correct-horse-battery"))

    running(Addresses(listen="127.0.0.1:0", http="0.0.0.0:0"), do_nothing, access=access)

    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []


def test_http_can_be_left_out(running: Running) -> None:
    async def look(announcement: Announcement) -> None:
        assert announcement["http"] is None

    running(Addresses(listen="127.0.0.1:0", http=None), look)


@pytest.mark.parametrize(
    ("advertise", "shown"),
    [("gpu7.example", "gpu7.example:{port}"), ("203.0.113.5:999", "203.0.113.5:999")],
)
def test_the_address_that_workers_should_use_is_the_one_announced(
    running: Running, caplog: pytest.LogCaptureFixture, advertise: str, shown: str
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    seen: list[Announcement] = []

    async def look(announcement: Announcement) -> None:
        seen.append(announcement)

    with caplog.at_level(logging.INFO, "gradwire.daemon"):
        running(Addresses(listen=f"127.0.0.1:{port}", http=None, advertise=advertise), look)

    assert seen[0]["master"] == shown.format(port=port)
    assert naming(f"GRADWIRE_MASTER={shown.format(port=port)}") in caplog.messages


def test_who_is_insecure_on_every_address_is_warned(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Announcement] = []

    async def look(announcement: Announcement) -> None:
        seen.append(announcement)

    with caplog.at_level(logging.INFO, "gradwire.daemon"):
        running(Addresses(listen="0.0.0.0:0", http=None), look, keys=KeySource(insecure=True))

    port = seen[0]["master"].split(":")[1]
    assert naming(f"GRADWIRE_MASTER=THIS-HOST:{port}") in caplog.messages
    warnings = [r.message for r in caplog.records if r.levelname == "WARNING"]
    assert warnings == [
        naming("INSECURE", f"port {port}", "gradwire keygen run.key", "--key-file run.key")
    ]


def test_who_listens_on_loopback_is_not_warned(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    running(Addresses(listen="127.0.0.1:0", http=None), do_nothing)

    assert [r.message for r in caplog.records if r.levelno >= logging.WARNING] == []


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
        url = f"http://{announcement['http']}/metrics"
        async with aiohttp.ClientSession() as client, client.get(url) as response:
            lines = (await response.text()).splitlines()
        name = f"gradwire_checkpoints_{what}_total "
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
        answer.wait(10)
        raise OSError(errno.EIO, "Input/output error")

    async def look(announcement: Announcement) -> None:
        join = partial(gradwire.join, np.zeros(4, np.float32), master=announcement["master"])
        session = await asyncio.to_thread(join)
        await until(asked.is_set, "the disk to be asked")
        await asyncio.to_thread(session.close)

    monkeypatch.setattr("gradwire_server.daemon.daemon.STOP_WRITING_SECONDS_MAX", 0.05)
    with closing(CheckpointFolder(tmp_path, 1)) as folder:
        monkeypatch.setattr(folder, "write", hang)
        running(ANYWHERE, look, folder=folder)
        answer.set()

    assert naming("no checkpoint", "0.05 s") in caplog.messages


# What it refuses.


@LOOPS
def test_a_udp_address_in_use_names_the_option_to_change(running: Running, kind: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{other.getsockname()[1]}"

        with pytest.raises(AddressInUseError, match=naming("UDP", address, "--listen")):
            running(Addresses(listen=address, http=None), do_nothing, kind=kind)


@LOOPS
def test_an_http_address_in_use_names_the_option_to_change(running: Running, kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"

        with pytest.raises(AddressInUseError, match=naming("HTTP", address, "--http")):
            running(Addresses(listen="127.0.0.1:0", http=address), do_nothing, kind=kind)


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
        running(Addresses(listen=listen, http=http), do_nothing, keys=KeySource(insecure=True))

    assert not isinstance(refused.value, AddressInUseError)


def test_a_host_that_is_not_known_is_named(running: Running) -> None:
    with pytest.raises(UnreachableError, match=naming("fe80::1%nowhere")):
        running(Addresses(listen="[fe80::1%nowhere]:0", http=None), do_nothing)


# How it ends.


def test_sigint_ends_it_like_sigterm(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "gradwire.daemon"):
        running(ANYWHERE, do_nothing, end=signal.SIGINT)

    assert naming("stopped", "SIGINT") in caplog.messages


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


def test_who_is_insecure_on_every_address_is_warned_whatever_is_advertised(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    addresses = Addresses(listen="0.0.0.0:0", http=None, advertise="127.0.0.1")

    running(addresses, do_nothing, keys=KeySource(insecure=True))

    assert [r.levelname for r in caplog.records if "anyone who can" in r.message] == ["WARNING"]
