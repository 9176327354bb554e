"""Mistakes that people make with gradwire, each made here, and the message that it gets.

docs/mistakes.md has the table of them. What differs from machine to machine in a message, such as a
port or a folder, is written as a name there.
"""

import io
import os
import re
import socket
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import torch
from torch import nn

import gradwire
from gradwire.cli.app import main
from gradwire_protocol.crypto.keys import SECRET_BYTES, RunKey
from gradwire_udp.files.keys import write_key
from support.local_master import LocalMaster
from support.waiting import PROCESS, SOON

ORDINARY: Final[Mapping[str, Any]] = {
    "threshold": 0.5,
    "start_timeout_seconds": 0.0,
    "finish_timeout_seconds": PROCESS,
}


@dataclass(frozen=True)
class Mistake:
    """Something that somebody does."""

    what: str
    """In Markdown."""
    make: Callable[["Place"], str]
    """Does it, and returns the message."""


MISTAKES: Final[list[Mistake]] = []


def mistake(what: str) -> Callable[[Callable[["Place"], str]], Callable[["Place"], str]]:
    """Add a mistake."""

    def add(make: Callable[["Place"], str]) -> Callable[["Place"], str]:
        MISTAKES.append(Mistake(what, make))
        return make

    return add


class Place:
    """Where mistakes are made: a folder, and a master without keys.

    Parameters
    ----------
    folder : Path
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, str] = {str(folder): "DIR"}
        """What stands for something in messages."""
        self._stack = ExitStack()
        self.master = self.start()

    def start(self, **options: Any) -> LocalMaster:
        """Return a master that ends with this place."""
        master = self._stack.enter_context(LocalMaster(**options))
        self.names[master.address] = "HOST:PORT"
        return master

    def close(self) -> None:
        """End the masters, and sessions that are still open."""
        self._stack.close()

    def join(self, target: object = None, *rest: Any, **options: Any) -> gradwire.Session:
        """Join, with what a message does not depend on."""
        joined = nn.Linear(3, 2) if target is None else target
        given = {"master": self.master.address, **ORDINARY, **options}
        session = gradwire.join(joined, *rest, **given)
        self.master.sessions.append(session)
        return session

    def error_of(self, act: Callable[[], object]) -> str:
        """Return the message of the error that something ends with."""
        try:
            act()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        raise AssertionError("it was no mistake")

    def joins(self, target: object = None, *rest: Any, **options: Any) -> str:
        """Return the message of an attempt to join."""
        return self.error_of(lambda: self.join(target, *rest, **options))

    def warned_of(self, act: Callable[[], object]) -> str:
        """Return the warning that something causes."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            act()
        [said] = [each for each in caught if issubclass(each.category, gradwire.GradwireWarning)]
        return f"{said.category.__name__}: {said.message}"

    def said(self, *command: str | Path) -> str:
        """Return what a command writes to stderr, which fails."""
        written = io.StringIO()
        with redirect_stderr(written):
            status = main([str(each) for each in command])
        assert status, "it was no mistake"
        return written.getvalue().strip()

    def plain(self, message: str) -> str:
        """Return a message without what differs from machine to machine."""
        # A busy machine says that it waits, and for what.
        waits = r"(?m)^gradwire( run)?: waiting (\(\d+ s\)|for the master) .*\n"
        message = re.sub(waits, "", message)
        for place, name in self.names.items():
            message = message.replace(place, name)
        for pattern, name in (
            (rf"{re.escape(socket.gethostname())}/\d+", "HOST/PID"),
            (r"\S+/gradwire-keys-\w+", "KEYS"),
            (r"127\.0\.0\.1:\d+", "HOST:PORT"),
            (r"\bafter \d+\.\d s", "after S s"),
            (r"\bwaited [\d.]+ s\b", "waited S s"),
        ):
            message = re.sub(pattern, name, message)
        return " ".join(message.split())


def table(folder: Path) -> str:
    """Make all mistakes, and return the table for the documentation."""
    rows = ["| what one does | what gradwire says |", "| --- | --- |"]
    with _plain_environment():
        place = Place(folder)
        try:
            for each in MISTAKES:
                said = place.plain(each.make(place)).replace("|", "\\|").replace("`", "'")
                rows.append(f"| {each.what} | `{said}` |")
        finally:
            place.close()
    return "\n".join(rows)


@contextmanager
def _plain_environment() -> Iterator[None]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("GRADWIRE_")}
    with patch.dict(os.environ, ours, clear=True):
        yield


# The target.


@mistake("`join(model, optimizer)`: the optimizer by position")
def _(place: Place) -> str:
    model = nn.Linear(3, 2)
    return place.joins(model, torch.optim.SGD(model.parameters()))


@mistake("`join(optimizer)`")
def _(place: Place) -> str:
    return place.joins(torch.optim.SGD(nn.Linear(3, 2).parameters()))


@mistake("`join(model.parameters())`")
def _(place: Place) -> str:
    return place.joins(nn.Linear(3, 2).parameters())


@mistake("`join(model.state_dict())`")
def _(place: Place) -> str:
    return place.joins(nn.Linear(3, 2).state_dict())


@mistake("`join(array)` with an array of float64")
def _(place: Place) -> str:
    return place.joins(np.zeros(3))


@mistake("a parameter of the model is NaN")
def _(place: Place) -> str:
    model = nn.Linear(3, 2)
    with torch.no_grad():
        model.weight[1, 2] = float("nan")
    return place.joins(model)


@mistake("an optimizer of another model")
def _(place: Place) -> str:
    return place.joins(optimizer=torch.optim.SGD(nn.Linear(3, 2).parameters()))


@mistake("the same model joins twice")
def _(place: Place) -> str:
    model = nn.Linear(3, 2)
    with place.join(model, run="twice"):
        return place.joins(model, run="twice")


@mistake("all parameters are frozen")
def _(place: Place) -> str:
    model = nn.Linear(3, 2).requires_grad_(requires_grad=False)
    return place.warned_of(lambda: place.join(model, run="frozen").close())


# The master.


@mistake("no master is named")
def _(place: Place) -> str:
    return place.joins(master=None)


@mistake("`master='http://10.0.2.4:40123'`")
def _(place: Place) -> str:
    return place.joins(master="http://10.0.2.4:40123")


@mistake("`master='10.0.2.4:123456'`")
def _(place: Place) -> str:
    return place.joins(master="10.0.2.4:123456")


@mistake("the master's name is unknown")
def _(place: Place) -> str:
    return place.joins(master="no-such-host.invalid:40123")


@mistake("no master runs there")
def _(place: Place) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        return place.joins(
            master=f"127.0.0.1:{sock.getsockname()[1]}", connect_timeout_seconds=SOON / 8
        )


@mistake("`mode='centrl'`")
def _(place: Place) -> str:
    return place.joins(mode="centrl")


@mistake("no step: `session.step()` is never called")
def _(place: Place) -> str:
    session = place.join(run="bert")
    said = session._loss_warning()
    session.close("done")
    assert said is not None
    return said


@mistake("another model under the name of a run")
def _(place: Place) -> str:
    with place.join(run="bert"):
        return place.joins(nn.Linear(4, 2), run="bert")


@mistake("several runs are in progress, and the worker names none")
def _(place: Place) -> str:
    with place.join(run="bert"), place.join(run="gpt"):
        return place.joins()


# Keys.


def _key(place: Place, name: str) -> Path:
    path = place.folder / name
    if not path.exists():
        write_key(path, RunKey(bytes(range(SECRET_BYTES))).worker_key("gpu1").format())
    return path


@mistake("the key file is missing")
def _(place: Place) -> str:
    return place.joins(key_file=place.folder / "missing.key")


@mistake("the key file can be read by others")
def _(place: Place) -> str:
    path = place.folder / "open.key"
    path.write_bytes(_key(place, "closed.key").read_bytes())
    path.chmod(0o644)
    return place.joins(key_file=path)


@mistake("the key file holds something else")
def _(place: Place) -> str:
    path = place.folder / "train.key"
    path.touch(0o600)
    path.write_text("import gradwire\n", encoding="ascii")
    return place.joins(key_file=path)


@mistake("a key, and the master has none")
def _(place: Place) -> str:
    return place.joins(key_file=_key(place, "gpu1.key"), connect_timeout_seconds=SOON / 8)


# Settings.


@mistake("`target_density=2`")
def _(place: Place) -> str:
    return place.joins(threshold=None, target_density=2)


@mistake("`threshold=0.5, target_density=0.01`")
def _(place: Place) -> str:
    return place.joins(target_density=0.01)


@mistake("`threshold=-1`")
def _(place: Place) -> str:
    return place.joins(threshold=-1)


@mistake("`workers=0`")
def _(place: Place) -> str:
    return place.joins(workers=0)


@mistake("`scale='average'`")
def _(place: Place) -> str:
    return place.joins(scale="average")


@mistake("`momentum='off'`")
def _(place: Place) -> str:
    return place.joins(momentum="off")


@mistake("`transport='quic'`")
def _(place: Place) -> str:
    return place.joins(transport="quic")


@mistake("`GRADWIRE_WORKERS=two`")
def _(place: Place) -> str:
    with patch.dict(os.environ, GRADWIRE_WORKERS="two"):
        return place.joins()


@mistake("`GRADWIRE_MASTR=…`: a variable that there is not")
def _(place: Place) -> str:
    with patch.dict(os.environ, GRADWIRE_MASTR="10.0.2.4"):
        return place.warned_of(lambda: place.join(run="mastr").close())


# While it trains.


@mistake("`push` of another shape")
def _(place: Place) -> str:
    with place.join(np.zeros(3, np.float32), run="shape") as session:
        return place.error_of(lambda: session.push(np.zeros(4, np.float32)))


@mistake("a change that is infinite")
def _(place: Place) -> str:
    with place.join(np.zeros(3, np.float32), run="infinite") as session:
        return place.error_of(lambda: session.push(np.full(3, np.inf, np.float32)))


@mistake("a checkpoint is loaded after `join`")
def _(place: Place) -> str:
    model = nn.Linear(3, 2)
    session = place.join(model, run="loaded")
    model.load_state_dict(nn.Linear(3, 2).state_dict())
    message = place.error_of(session.step)
    session.close()
    return message


@mistake("a step after the session is closed")
def _(place: Place) -> str:
    session = place.join(run="closed")
    session.close()
    return place.error_of(session.step)


@mistake("`averaged_buffers='emma'`: a buffer that there is not")
def _(place: Place) -> str:
    return place.joins(nn.BatchNorm1d(2), averaged_buffers="emma")


@mistake("`load_checkpoint` of an empty folder")
def _(place: Place) -> str:
    folder = place.folder / "checkpoints"
    folder.mkdir(exist_ok=True)
    return place.error_of(lambda: gradwire.load_checkpoint(folder, nn.Linear(3, 2)))


# Commands.


@mistake("`gradwire master` for other machines, without a key")
def _(place: Place) -> str:
    return place.said("master", "--listen", "0.0.0.0:0", "--http", "off")


@mistake("`gradwire master` at a port in use")
def _(place: Place) -> str:
    return place.said("master", "--listen", place.master.address, "--http", "off")


@mistake("`--checkpoint` with the name of a file")
def _(place: Place) -> str:
    (place.folder / "file").touch()
    return place.said("master", "--listen", "127.0.0.1:0", "--checkpoint", place.folder / "file")


@mistake("`--resume` of an empty folder")
def _(place: Place) -> str:
    folder = place.folder / "nothing"
    folder.mkdir(exist_ok=True)
    return place.said("master", "--listen", "127.0.0.1:0", "--resume", folder)


@mistake("`--deny gpu1` without a key")
def _(place: Place) -> str:
    return place.said("master", "--listen", "127.0.0.1:0", "--deny", "gpu1")


@mistake("`gradwire keygen run.key` where that file is")
def _(place: Place) -> str:
    return place.said("keygen", _key(place, "run.key"))


@mistake("`gradwire operate` where no master is")
def _(place: Place) -> str:
    return place.said("operate", "status", "--http", "http://127.0.0.1:9")


@mistake("`gradwire run` of a script that there is not")
def _(place: Place) -> str:
    return place.said("run", "-n", "2", place.folder / "train.py")


@mistake("`gradwire warm-up --cpu generic` without `--system`")
def _(place: Place) -> str:
    return place.said("warm-up", "--cpu", "generic")
