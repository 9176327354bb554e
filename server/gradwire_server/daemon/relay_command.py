"""``gradwire relay``: the command line of a relay.

It has those options of ``gradwire master`` that say how to listen and whom to let in.
"""

import asyncio
import gc
import logging
import os
from inspect import Parameter, Signature
from typing import Annotated, Any, Final

import typer

from gradwire_protocol import GradwireError, UsageError
from gradwire_server.config import MasterConfig
from gradwire_server.daemon.command import (
    EXIT_ADDRESS_IN_USE,
    EXIT_USAGE,
    OPTIONS,
    DaemonOptions,
    addresses_of,
    keys_of,
    parameter_of,
    values_of,
)
from gradwire_server.daemon.listening import AddressInUseError
from gradwire_server.daemon.relay_daemon import RelayDaemon
from gradwire_server.http.access import Access, find_token
from gradwire_udp import new_event_loop, split_address
from gradwire_udp.files.configuration import unknown_variables

logger = logging.getLogger("gradwire.relay")

DEFAULTS: Final = {
    "listen": "127.0.0.1:40125",
    "http": "127.0.0.1:40126",
    # A peer that misses its relay has a way around it, and loses nothing if it was mistaken.
    "idle_timeout_seconds": 6.0,
}
"""Where they differ from those of a master, which may run on the same machine."""

TAKEN: Final = [
    "listen",
    "network",
    "advertise",
    "http",
    "http_token_file",
    "public_metrics",
    "transport",
    "key_file",
    "deny",
    "deny_file",
    "insecure",
    "loop",
    "merge_seconds",
    "workers_max",
    "datagram_bytes",
    "datagram_bytes_max",
    "congestion",
    "link_rate",
    "idle_timeout_seconds",
    "outlier_policy",
    "outlier_norm_multiple",
    "update_rate_max",
    "update_log_bytes_max",
    "relay_backlog_bytes_max",
    "conflation_bytes_max",
    "slow_seconds",
    "reassembly_bytes_max",
]
"""The options of a master that a relay has, too, by their names in the code."""


def relay(**given: Any) -> None:
    """Stand between workers and a master: send on their updates as one, and to all what it sends.

    The master has to be started with --topology tree, or auto. SIGTERM or Ctrl-C stop the relay;
    its workers go on at the master.
    Exit status: 0 stopped on request, 2 wrong usage, 3 address in use.
    """
    unknown = unknown_variables(os.environ)
    if unknown is not None:
        logger.warning("%s", unknown)
    parent: str = given.pop("of")
    keeps_replica: bool = given.pop("replica")
    try:
        values = values_of(given)
        options = DaemonOptions(**values[DaemonOptions])
        settings = MasterConfig(topology="tree", **values[MasterConfig])
        _ = settings.connection  # raises `UsageError` for settings that no connection can have
        split_address(parent)  # raises `UsageError` for what is no address
        if options.transport == "tcp":
            raise UsageError("a relay reaches its master over UDP: leave out --transport tcp")
        access = Access(
            token=find_token(options.http_token_file), public_metrics=options.public_metrics
        )
        gc.freeze()  # as a master does
        with asyncio.Runner(loop_factory=lambda: new_event_loop(options.loop)) as runner:
            daemon = RelayDaemon(
                settings,
                addresses_of(options),
                parent,
                access,
                keys_of(options),
                keeps_replica=keeps_replica,
            )
            runner.run(daemon.run())
    except AddressInUseError as error:
        typer.echo(f"gradwire relay: {error}", err=True)
        raise typer.Exit(EXIT_ADDRESS_IN_USE) from None
    except GradwireError as error:
        typer.echo(f"gradwire relay: {error}", err=True)
        raise typer.Exit(EXIT_USAGE) from None


_OF: Final = Parameter(
    "of",
    Parameter.KEYWORD_ONLY,
    annotation=Annotated[
        str,
        typer.Option(
            envvar="GRADWIRE_MASTER",
            metavar="HOST:PORT",
            help="The master that it stands before, or another relay.",
        ),
    ],
)

_REPLICA: Final = Parameter(
    "replica",
    Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[
        bool,
        typer.Option(
            "--replica",
            envvar="GRADWIRE_REPLICA",
            help="Keep a replica, and give it to workers that join later, so that the master need "
            "not send it. It takes 4 bytes of memory for each parameter.",
        ),
    ],
)

# typer reads the options off the signature of the function.
_parameters = [
    _OF,
    _REPLICA,
    *(
        parameter_of(name, each, DEFAULTS.get(name))
        for name, each in OPTIONS.items()
        if each.name in TAKEN
    ),
]
relay.__signature__ = Signature(_parameters)  # type: ignore[attr-defined]
relay.__annotations__ = {each.name: each.annotation for each in _parameters}
