"""``gradwire relay``: the command line of a relay.

Its options are declared here, and read as those of ``gradwire master`` are. Logs go to stderr;
stdout has one line of JSON that says where the relay listens.
"""

import asyncio
import os
from dataclasses import dataclass
from inspect import Signature
from pathlib import Path
from typing import Any, Final

import typer

from gradwire_protocol import GradwireError, UsageError
from gradwire_protocol.limits import MIB
from gradwire_protocol.messages.fields import ADDRESS_CHARACTERS_MAX
from gradwire_protocol.settings import declared_settings, setting
from gradwire_server.config import MasterConfig
from gradwire_server.daemon.command import EXIT_ADDRESS_IN_USE, EXIT_USAGE, parameter_of
from gradwire_server.daemon.key_source import KeySource
from gradwire_server.daemon.listening import AddressInUseError, Transport
from gradwire_server.daemon.relay_daemon import RelayDaemon
from gradwire_udp import new_event_loop, split_address
from gradwire_udp.files.keys import RUN_CREDENTIAL, credential
from gradwire_udp.sockets import PORT

MASTER: Final = MasterConfig()
"""With the defaults of a master."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayOptions:
    """Options of a relay."""

    of: list[str] | None = setting(
        None,
        "The master, or the other relay, whose workers it lets in. With several, separated by "
        "commas, it tries the next one where one does not answer.",
        metavar="HOST:PORT",
    )
    listen: str = setting(
        f"127.0.0.1:{PORT}",
        "Where workers reach it. 0.0.0.0 is every IPv4 address of this machine, [::] every "
        "address.",
        metavar="HOST:PORT",
    )
    transport: Transport = setting(
        "auto",
        "What it listens to at this port: 'auto' is UDP, and TCP for workers behind firewalls that "
        "let no UDP through. Its parent it reaches over UDP.",
    )
    key_file: Path | None = setting(
        None,
        "File with the run key of its master: only workers with a key that follows from it are let "
        "in, and packets are sealed. Without it, the systemd credential run.key, if there is one.",
        metavar="FILE",
    )
    insecure: bool = setting(
        False,
        "Listen without a key where other machines can reach it: anyone there can join, read and "
        "change the model.",
    )
    workers_max: int = setting(
        MASTER.workers_max, "Workers and relays that it lets in at once.", least=1, most=1_000
    )
    update_log_bytes_max: int = setting(
        MASTER.update_log_bytes_max,
        "MiB of the log that are kept for workers; one that lacks more is sent a sum.",
        above=0,
        unit=MIB,
    )
    idle_timeout_seconds: float = setting(
        MASTER.idle_timeout_seconds, "A worker that is silent for this long is disconnected."
    )


OPTIONS: Final = {each.option: each for each in declared_settings(RelayOptions).values()}
"""Every option, by its name."""


def relay(**given: Any) -> None:
    """Run a relay: it lets workers in for a master, and sends them the updates for it.

    Workers join at a relay as at the master, and where the relay is lost they go on at the master.
    SIGTERM or Ctrl-C stop it.
    Exit status: 0 stopped on request, 2 wrong usage, 3 address in use.
    """
    values = {each.name: given[name] * each.about.unit if each.about.unit > 1 and given[name]
              else given[name] for name, each in OPTIONS.items()}  # fmt: skip
    options = RelayOptions(**values)
    try:
        parents = [each.strip() for text in options.of or () for each in text.split(",")]
        if not parents:
            raise UsageError("--of is missing: pass the address of the master, --of HOST:PORT")
        for parent in parents:
            split_address(parent, PORT)  # raises `UsageError` for what is none
            if len(parent) > ADDRESS_CHARACTERS_MAX:
                raise UsageError(
                    f"--of has an address of {len(parent)} characters; the limit is "
                    f"{ADDRESS_CHARACTERS_MAX}"
                )
        config = MasterConfig(
            workers_max=options.workers_max,
            update_log_bytes_max=options.update_log_bytes_max,
            idle_timeout_seconds=options.idle_timeout_seconds,
        )
        _ = config.connection  # raises `UsageError` for settings that no connection can have
        key_file = options.key_file
        if key_file is None and not options.insecure:
            key_file = credential(os.environ, RUN_CREDENTIAL)
        keys = KeySource(key_file=key_file, insecure=options.insecure)
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            daemon = RelayDaemon(config, options.listen, parents, options.transport, keys)
            runner.run(daemon.run())
    except AddressInUseError as error:
        typer.echo(f"gradwire relay: {error}", err=True)
        raise typer.Exit(EXIT_ADDRESS_IN_USE) from None
    except GradwireError as error:
        typer.echo(f"gradwire relay: {error}", err=True)
        raise typer.Exit(EXIT_USAGE) from None


_parameters = [parameter_of(name, each) for name, each in OPTIONS.items()]
relay.__signature__ = Signature(_parameters)  # type: ignore[attr-defined]
relay.__annotations__ = {each.name: each.annotation for each in _parameters}
