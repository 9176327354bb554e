"""``gradwire master``: the command line of the daemon.

Every option is declared once, in `MasterConfig` or here in `DaemonOptions`. Its value comes from
the command line, else from the variable ``GRADWIRE_<OPTION>``, else from the table ``[master]`` of
the file that ``--config`` names. Logs go to stderr; stdout has one line of JSON that says where the
master listens.
"""

import asyncio
import gc
import logging
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gradwire_protocol import GradwireError, UsageError
from gradwire_protocol.settings import DeclaredSetting, declared_settings, setting
from gradwire_server.checkpoints.folder import CheckpointFolder
from gradwire_server.checkpoints.resuming import resumed_runs
from gradwire_server.config import MasterConfig
from gradwire_server.daemon.announcer import Announcing
from gradwire_server.daemon.daemon import HTTP_PORT, Addresses, Daemon
from gradwire_server.daemon.key_source import KeySource, denied_names
from gradwire_server.daemon.listening import AddressInUseError, Transport
from gradwire_server.http.access import OPERATOR_CREDENTIAL, Access, find_token
from gradwire_udp import local_address_in, new_event_loop, show_address, split_address
from gradwire_udp.files.configuration import read_table, unknown_variables
from gradwire_udp.files.keys import RUN_CREDENTIAL, credential
from gradwire_udp.sockets import PORT

if TYPE_CHECKING:
    from gradwire_server.daemon.event_files import EventFiles

logger = logging.getLogger("gradwire.daemon")

EXIT_USAGE: Final = 2
EXIT_ADDRESS_IN_USE: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonOptions:
    """Options of the process around a master."""

    listen: str = setting(
        f"127.0.0.1:{PORT}",
        "Where workers reach it. 0.0.0.0 is every IPv4 address of this machine, [::] every "
        "address.",
        metavar="HOST:PORT",
    )
    network: str | None = setting(
        None,
        "Listen at this machine's address inside a network such as 10.0.0.0/16, instead of "
        "--listen's host. GRADWIRE_IP overrides it.",
        metavar="CIDR",
    )
    advertise: str | None = setting(
        None,
        "The address workers should use, where it is not --listen's: behind a NAT, or in a "
        "container.",
        metavar="HOST[:PORT]",
    )
    announce: str | None = setting(
        None,
        "Where in ZooKeeper workers find this master: its address, --run, --mode, and the table "
        "[session] of --config, whose settings hold where workers give no others. It needs pip "
        "install 'gradwire[zookeeper]'.",
        metavar="zk://HOST:PORT/PATH",
    )
    announce_auth_file: Path | None = setting(
        None,
        "File with USER:PASSWORD for ZooKeeper's scheme digest: only who has it can change what is "
        "announced, and everyone can read it.",
        metavar="FILE",
    )
    http: str = setting(
        f"127.0.0.1:{HTTP_PORT}",
        "Address of the page, /metrics, /api/v1, /healthz and orders; 'off' for none. Without "
        "--http-token-file, other machines can see only /healthz.",
        metavar="HOST:PORT",
    )
    http_token_file: Path | None = setting(
        None,
        "File with the bearer token that everything over HTTP except /healthz then requires, made "
        "by `gradwire keygen --token`. Without it, the systemd credential http-token, if there is "
        "one.",
        metavar="FILE",
    )
    http_operator_token_file: Path | None = setting(
        None,
        "File with the bearer token of operators, who give orders (`gradwire operate`) and see all "
        "that the other token shows. Without it, the systemd credential http-operator-token, if "
        "there is one; without both, only a master without keys on loopback takes orders.",
        metavar="FILE",
    )
    transport: Transport = setting(
        "auto",
        "What to listen to at this port: 'auto' is UDP, and TCP for workers behind firewalls that "
        "block UDP.",
    )
    key_file: Path | None = setting(
        None,
        "File with the run key, made by `gradwire keygen`: only workers with a key made from it "
        "are admitted, and packets are encrypted. SIGHUP has it read again. Without it, the "
        "systemd credential run.key, if there is one.",
        metavar="FILE",
    )
    deny: list[str] | None = setting(
        None,
        "Name of a worker that may not take part, whatever its key. Separate several names by "
        "commas, or repeat the option.",
        metavar="NAME",
    )
    insecure: bool = setting(
        False,
        "Listen without a key where other machines can reach it: anyone there can join, read and "
        "change the model.",
    )
    checkpoint: Path | None = setting(
        None,
        "Folder for checkpoints of the run: while it goes on, when it is finished, and when the "
        "master stops. Anyone who can write there can change the model.",
        metavar="DIR",
    )
    resume: str | None = setting(
        None,
        "Continue each run from its newest checkpoint in this folder; if none can be used, do not "
        "start. 'auto' is the folder of --checkpoint, which may be empty.",
        metavar="DIR",
    )
    tensorboard: Path | None = setting(
        None,
        "Folder for what workers log (session.log), as event files that TensorBoard reads. It "
        "needs pip install 'gradwire[tensorboard]'.",
        metavar="DIR",
    )


OPTIONS: Final = {
    each.option: each
    for each in (
        *declared_settings(DaemonOptions).values(),
        *declared_settings(MasterConfig).values(),
    )
    if each.about.is_option
}
"""Every option but ``--config``, by its name."""

SWITCHED_ON_ONLY: Final = frozenset({"insecure", "new_run"})
"""Options that have no ``--no-...``."""


def load_config(context: typer.Context, path: Path | None) -> Path | None:
    """Make the table ``[master]`` of a TOML file the defaults of the other options."""
    if path is None:
        return None
    try:
        table, warning = read_table(path, "master")
    except UsageError as error:
        raise typer.BadParameter(str(error)) from None
    if warning is not None:
        logger.warning("%s", warning)
    context.default_map = {**(context.default_map or {}), **table}
    return path


def master(**given: Any) -> None:
    """Run the master daemon: it lets workers join, keeps the parameters, and relays updates.

    SIGTERM or Ctrl-C stops it after messages in flight have arrived, and workers are told; a second
    one stops it at once. SIGHUP makes it read its keys again. Exit status: 0 stopped on request, 2
    wrong usage, 3 address in use.
    """
    values = {each.name: given[name] * each.about.unit if each.about.unit > 1 and given[name]
              else given[name] for name, each in OPTIONS.items()}  # fmt: skip
    options = DaemonOptions(**_of(DaemonOptions, values))
    try:
        unknown = unknown_variables(os.environ)
        if unknown is not None:
            logger.warning("%s", unknown)
        settings = MasterConfig(**_of(MasterConfig, values))
        _ = settings.connection  # raises `UsageError` for settings that no connection can have
        if settings.standby_of is not None and options.resume is not None:
            raise UsageError(
                "--resume with --standby-of: leave out --resume, a standby gets the run from the "
                "primary"
            )
        addresses = Addresses(
            listen=_listen_address(options.listen, options.network),
            http=None if options.http == "off" else options.http,
            advertise=options.advertise,
            transport=options.transport,
        )
        access = Access(
            token=find_token(options.http_token_file),
            operator_token=find_token(options.http_operator_token_file, OPERATOR_CREDENTIAL),
        )
        key_file = options.key_file
        if key_file is None and not options.insecure:
            key_file = credential(os.environ, RUN_CREDENTIAL)
        keys = KeySource(
            key_file=key_file,
            denied=denied_names(options.deny or ()),
            insecure=options.insecure,
        )
        announcing = _announcing(options, settings, addresses, given["config"])
        event_files = None if options.tensorboard is None else _event_files(options.tensorboard)
        # What is loaded by now stays. The garbage collector would look at all of it now and then,
        # for a tenth of a second in which nothing is relayed.
        gc.freeze()
        with (
            _folder(options, settings.checkpoint_keep) as folder,
            asyncio.Runner(loop_factory=new_event_loop) as runner,
        ):
            resume = None if settings.new_run else options.resume
            runs = resumed_runs(resume, options.checkpoint, settings)
            daemon = Daemon(
                settings, addresses, access, keys,
                resumed=runs, folder=folder, event_files=event_files, announcing=announcing,
            )  # fmt: skip
            runner.run(daemon.run())
    except AddressInUseError as error:
        typer.echo(f"gradwire master: {error}", err=True)
        raise typer.Exit(EXIT_ADDRESS_IN_USE) from None
    except GradwireError as error:
        typer.echo(f"gradwire master: {error}", err=True)
        raise typer.Exit(EXIT_USAGE) from None


def _of(config: type, values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in declared_settings(config) if name in values}


def parameter_of(name: str, each: DeclaredSetting) -> Parameter:
    """Return an option as the parameter of a function, as typer reads it."""
    names = [f"--{name.replace('_', '-')}"] if name in SWITCHED_ON_ONLY else []
    option = typer.Option(
        *names,
        envvar=f"GRADWIRE_{name.upper()}",
        metavar=each.about.metavar,
        help=each.about.text,
    )
    default = each.default
    if each.about.unit > 1 and default is not None:
        default //= each.about.unit
    return Parameter(
        name,
        Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[each.annotation, option],
    )


_CONFIG: Final = Parameter(
    "config",
    Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        Path | None,
        typer.Option(
            envvar="GRADWIRE_CONFIG",
            help="TOML file with a table [master] of these options.",
            callback=load_config,
            is_eager=True,
        ),
    ],
)

# typer reads the options off the signature of the function.
_parameters = [*(parameter_of(name, each) for name, each in OPTIONS.items()), _CONFIG]
master.__signature__ = Signature(_parameters)  # type: ignore[attr-defined]
master.__annotations__ = {each.name: each.annotation for each in _parameters}


def _folder(options: DaemonOptions, keep: int) -> AbstractContextManager[CheckpointFolder | None]:
    if options.checkpoint is None:
        return nullcontext()
    resuming = options.resume is not None
    return closing(CheckpointFolder(options.checkpoint, keep, resuming=resuming))


def _event_files(directory: Path) -> "EventFiles":
    try:
        from gradwire_server.daemon.event_files import EventFiles
    except ImportError as error:
        raise UsageError(
            f"--tensorboard {directory}: {error}; install what it needs: pip install "
            "'gradwire[tensorboard]'"
        ) from None
    return EventFiles(directory)


def _announcing(
    options: DaemonOptions, settings: MasterConfig, addresses: Addresses, config: Path | None
) -> Announcing | None:
    if options.announce is None:
        if options.announce_auth_file is not None:
            raise UsageError(
                f"--announce-auth-file {options.announce_auth_file} without --announce: pass "
                "--announce zk://host:2181/path"
            )
        return None
    own = {"run": settings.run, "mode": settings.mode}
    return Announcing.of(
        options.announce,
        options.announce_auth_file,
        config,
        own,
        addresses.advertise or addresses.listen,
    )


def _listen_address(listen: str, network: str | None) -> str:
    """Return where to listen; GRADWIRE_IP or `network` replaces the host of `listen`."""
    host = os.environ.get("GRADWIRE_IP") or (local_address_in(network) if network else None)
    if host is None:
        return listen
    return show_address((host, split_address(listen)[1]))
