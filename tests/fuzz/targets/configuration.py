"""Configuration files: a byte says whose, the rest is the TOML file.

A worker's is put together with nothing else; a master's goes through the command line, as the
defaults of its options. Whatever is accepted makes settings that work.
"""

import atexit
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, Final

import typer
from typer.exceptions import TyperException
from typer.main import get_command

from gradwire.errors import UsageError
from gradwire.settings.settings import resolve_settings
from gradwire_protocol import ConnectionConfig
from gradwire_protocol.limits import MIB
from gradwire_server.config import MasterConfig
from gradwire_server.daemon.command import master

BYTES_MAX: Final = 1_024

_file = tempfile.NamedTemporaryFile(prefix="gradwire-fuzz-", suffix=".toml", buffering=0)  # noqa: SIM115
"""Kept open: making it anew would take longer than reading it."""
atexit.register(_file.close)

_application = typer.Typer(add_completion=False)
_application.command()(master)
_command = get_command(_application)


def check(data: bytes) -> None:
    """Read a configuration file."""
    if not data:
        return
    _file.seek(0)
    _file.truncate()
    _file.write(data[1:])
    if data[0] % 2:
        check_master()
    else:
        check_worker()


def check_worker() -> None:
    """Read the settings of a session."""
    try:
        settings = resolve_settings({}, {}, _file.name)
    except UsageError:
        return
    assert settings.master
    assert isinstance(settings.connection, ConnectionConfig)
    assert 0 < settings.make_policy().first_density(1_000) < 1


def check_master() -> None:
    """Read the defaults of a master's options."""
    try:
        context = _command.make_context("master", ["--config", _file.name])
        config = MasterConfig(**_settings_of(context.params))
        connection = config.connection
    except (UsageError, TyperException):
        return
    assert connection.window_bytes * config.workers_max <= config.reassembly_bytes


def _settings_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that options stand for: some count MiB where a setting counts bytes."""
    names = {field.name for field in fields(MasterConfig)}
    settings = {name: value for name, value in options.items() if name in names}
    for name, value in options.items():
        if name.endswith("_mib_max") and value is not None:
            settings[name.replace("_mib_", "_bytes_")] = value * MIB
    return settings


def seeds() -> Iterable[bytes]:
    """Return files that work, files that nearly do, and values out of all bounds."""
    for side, (table, lines) in enumerate((("session", _SESSION), ("master", _MASTER))):
        for line in lines:
            yield bytes([side]) + f"[{table}]\n{line}\n".encode()
        yield bytes([side]) + f"{table} = 1".encode()
        yield bytes([side]) + b"\xff"
    yield b"\0a = " + b"[" * 200


_SESSION: Final = (
    'master = "10.0.0.1:40123"\nrun = "run"\nrank = 3\nworkers = 4',
    'master = "host"\nthreshold = 0.5\nquantum = 0.5\nfeedback = "shared"',
    'master = "host"\ntarget_density = 0.1\nidle_timeout_seconds = 1e300\ntransport = "tcp"',
    'master = "host"\nthreshold = 1' + 320 * "0",
    'master = "host"\ndensity_band = [1e-4, 1e-2]\nshake_up_steps = 50',
    'master = "host"\nshare_buffers = true\nwarm_up_steps = 10',
    'master = "host"\ntarget_density = 1e-3\nscale = 0.5',
)
_MASTER: Final = (
    'listen = "0.0.0.0:40123"\nworkers_max = 4\nreassembly_mib_max = 100\nprocesses = 2',
    'run = "run"\nlink_rate = 12.5\nidle_timeout_seconds = 3\nhttp = "off"',
    'parameters_max = "7"\nrelay_backlog_mib_max = 0\ncongestion = ["bbr"]\nnetwork = 2026-01-01',
    "link_rate = 1" + 320 * "0",
)
