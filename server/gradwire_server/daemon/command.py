"""``gradwire master``: the command line of the daemon.

Every option can also come from a variable ``GRADWIRE_<OPTION>`` or from the table ``[master]`` of
the file that ``--config`` names, in that order. Logs go to stderr; stdout has one line of JSON that
says where the master listens.
"""

import asyncio
import os
import tomllib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from gradwire_protocol import GradwireError, UsageError
from gradwire_protocol.limits import MIB
from gradwire_server.checkpoints.folder import CheckpointFolder
from gradwire_server.checkpoints.resuming import resumed_run
from gradwire_server.config import MasterConfig
from gradwire_server.daemon.daemon import HTTP_PORT, Addresses, Daemon
from gradwire_server.daemon.key_source import KeySource, denied_names
from gradwire_server.daemon.listening import AddressInUseError, Transport
from gradwire_server.http.access import Access, find_token
from gradwire_server.state.run import Run
from gradwire_server.updates.vetting import OutlierPolicy
from gradwire_udp import local_address_in, new_event_loop, show_address, split_address
from gradwire_udp.files.keys import RUN_CREDENTIAL, credential
from gradwire_udp.sockets import PORT

EXIT_USAGE: Final = 2
EXIT_ADDRESS_IN_USE: Final = 3

DEFAULTS: Final = MasterConfig()


def load_config(context: typer.Context, path: Path | None) -> Path | None:
    """Make the table ``[master]`` of a TOML file the defaults of the other options."""
    if path is None:
        return None
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8")).get("master", {})
    except (OSError, ValueError, RecursionError) as error:  # no TOML, or not even text
        raise typer.BadParameter(f"{path}: {error}") from None
    if not isinstance(table, dict):
        raise typer.BadParameter(f"{path}: 'master' is not a table")
    known = {parameter.name for parameter in context.command.params} - {"config", "help"}
    unknown = table.keys() - known
    if unknown:
        raise typer.BadParameter(f"{path}: unknown settings {', '.join(sorted(unknown))}")
    context.default_map = {**(context.default_map or {}), **table}
    return path


def master(
    *,
    listen: Annotated[
        str,
        typer.Option(
            envvar="GRADWIRE_LISTEN",
            metavar="HOST:PORT",
            help="Where workers reach it. 0.0.0.0 is every IPv4 address of this machine, [::] "
            "every address.",
        ),
    ] = f"127.0.0.1:{PORT}",
    network: Annotated[
        str | None,
        typer.Option(
            envvar="GRADWIRE_NETWORK",
            metavar="CIDR",
            help="Listen at this machine's address inside a network such as 10.0.0.0/16, "
            "instead of --listen's host. GRADWIRE_IP overrides it.",
        ),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(
            envvar="GRADWIRE_ADVERTISE",
            metavar="HOST[:PORT]",
            help="The address workers should use, where it is not --listen's: behind a NAT, or "
            "in a container.",
        ),
    ] = None,
    http: Annotated[
        str,
        typer.Option(
            envvar="GRADWIRE_HTTP",
            metavar="HOST:PORT",
            help="Where /metrics, /status and /healthz are served; 'off' for nowhere. Other "
            "machines can see only /healthz without --http-token-file.",
        ),
    ] = f"127.0.0.1:{HTTP_PORT}",
    http_token_file: Annotated[
        Path | None,
        typer.Option(
            envvar="GRADWIRE_HTTP_TOKEN_FILE",
            metavar="FILE",
            help="File with the bearer token that everything over HTTP but /healthz then asks for. "
            "Without it, the systemd credential http-token, if there is one.",
        ),
    ] = None,
    public_metrics: Annotated[
        bool,
        typer.Option(
            envvar="GRADWIRE_PUBLIC_METRICS", help="Let everyone read /metrics, without a token."
        ),
    ] = False,
    transport: Annotated[
        Transport,
        typer.Option(
            envvar="GRADWIRE_TRANSPORT",
            help="What it listens to at this port: 'auto' is UDP, and TCP for workers behind "
            "firewalls that let no UDP through.",
        ),
    ] = "auto",
    key_file: Annotated[
        Path | None,
        typer.Option(
            envvar="GRADWIRE_KEY_FILE",
            metavar="FILE",
            help="File with the run key, made by `gradwire keygen`: only workers with a key that "
            "follows from it are let in, and packets are sealed. SIGHUP has it read again. Without "
            "it, the systemd credential run.key, if there is one.",
        ),
    ] = None,
    deny: Annotated[
        list[str] | None,
        typer.Option(
            envvar="GRADWIRE_DENY",
            metavar="NAME",
            help="A worker that may not take part, whatever its key; several with commas between, "
            "or by several options.",
        ),
    ] = None,
    deny_file: Annotated[
        Path | None,
        typer.Option(
            envvar="GRADWIRE_DENY_FILE",
            metavar="FILE",
            help="File with names to deny, one a line. SIGHUP has it read again, and who is in it "
            "then is disconnected.",
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            envvar="GRADWIRE_INSECURE",
            help="Listen without a key where other machines can reach it: anyone there can join, "
            "read and change the model.",
        ),
    ] = False,
    run: Annotated[
        str | None,
        typer.Option(
            envvar="GRADWIRE_RUN",
            help="The only run to serve. Without it, whichever comes first, one after the other.",
        ),
    ] = DEFAULTS.run,
    standby: Annotated[
        str | None,
        typer.Option(
            envvar="GRADWIRE_STANDBY",
            metavar="HOST:PORT",
            help="Where this master's standby listens, as workers reach it: they go there when "
            "this one is lost. It begins when its standby is connected.",
        ),
    ] = DEFAULTS.standby,
    standby_of: Annotated[
        str | None,
        typer.Option(
            envvar="GRADWIRE_STANDBY_OF",
            metavar="HOST:PORT",
            help="Be the standby of the master there, which says --standby with this one's "
            "address: follow its run, and take over when it is lost.",
        ),
    ] = DEFAULTS.standby_of,
    takeover_seconds: Annotated[
        float,
        typer.Option(
            envvar="GRADWIRE_TAKEOVER_SECONDS",
            help="How long a standby goes on dialling the master that it has lost before it takes "
            "over.",
        ),
    ] = DEFAULTS.takeover_seconds,
    workers_max: Annotated[
        int, typer.Option(envvar="GRADWIRE_WORKERS_MAX", help="Workers and observers at once.")
    ] = DEFAULTS.workers_max,
    parameters_max: Annotated[
        int,
        typer.Option(
            envvar="GRADWIRE_PARAMETERS_MAX",
            help="Parameters of a model; each takes 4 bytes of memory.",
        ),
    ] = DEFAULTS.parameters_max,
    reassembly_mib_max: Annotated[
        int,
        typer.Option(
            envvar="GRADWIRE_REASSEMBLY_MIB_MAX",
            help="MiB of memory for messages on their way in.",
        ),
    ] = DEFAULTS.reassembly_bytes_max // MIB,
    relay_backlog_mib_max: Annotated[
        int,
        typer.Option(
            envvar="GRADWIRE_RELAY_BACKLOG_MIB_MAX",
            help="MiB under way to one worker; later updates are added up for it.",
        ),
    ] = DEFAULTS.relay_backlog_bytes_max // MIB,
    conflation_mib_max: Annotated[
        int,
        typer.Option(
            envvar="GRADWIRE_CONFLATION_MIB_MAX",
            help="MiB for updates added up, over all slow workers.",
        ),
    ] = DEFAULTS.conflation_bytes_max // MIB,
    slow_seconds: Annotated[
        float,
        typer.Option(
            envvar="GRADWIRE_SLOW_SECONDS",
            help="A slow worker that takes nothing for so long is dropped.",
        ),
    ] = DEFAULTS.slow_seconds,
    rejoin_seconds: Annotated[
        float,
        typer.Option(
            envvar="GRADWIRE_REJOIN_SECONDS",
            help="How long the rank of a worker that lost its connection is kept for it.",
        ),
    ] = DEFAULTS.rejoin_seconds,
    recovery_seconds: Annotated[
        float,
        typer.Option(
            envvar="GRADWIRE_RECOVERY_SECONDS",
            help="How long a master that was started waits for workers of a run that it may have "
            "had before it was killed.",
        ),
    ] = DEFAULTS.recovery_seconds,
    update_log_mib_max: Annotated[
        int,
        typer.Option(
            envvar="GRADWIRE_UPDATE_LOG_MIB_MAX",
            help="MiB of accepted updates that are kept for workers that come back; one that has "
            "missed more is sent the whole replica.",
        ),
    ] = DEFAULTS.update_log_bytes_max // MIB,
    datagram_bytes: Annotated[
        int,
        typer.Option(
            envvar="GRADWIRE_DATAGRAM_BYTES", help="Size of full datagrams to begin with."
        ),
    ] = DEFAULTS.datagram_bytes,
    datagram_bytes_max: Annotated[
        int,
        typer.Option(
            envvar="GRADWIRE_DATAGRAM_BYTES_MAX",
            help="Largest datagram to try: more is sent at once where the path carries it.",
        ),
    ] = DEFAULTS.datagram_bytes_max,
    congestion: Annotated[
        str,
        typer.Option(
            envvar="GRADWIRE_CONGESTION",
            help="Congestion control: 'bbr' keeps its rate on lossy links, 'cubic' gives way as "
            "TCP does, 'static' is for links that are known and not shared.",
        ),
    ] = DEFAULTS.congestion,
    link_rate: Annotated[
        float | None,
        typer.Option(
            envvar="GRADWIRE_LINK_RATE",
            metavar="MBIT",
            help="Mbit/s that the master may send to all workers together. Without it, the "
            "master learns what its link takes.",
        ),
    ] = DEFAULTS.link_rate,
    processes: Annotated[
        int,
        typer.Option(
            envvar="GRADWIRE_PROCESSES",
            help="Processes that the connections over UDP are spread over, so that more than one "
            "core can be used. Only on Linux.",
        ),
    ] = DEFAULTS.processes,
    idle_timeout_seconds: Annotated[
        float,
        typer.Option(
            envvar="GRADWIRE_IDLE_TIMEOUT_SECONDS",
            help="A worker that was silent for this long is taken for dead.",
        ),
    ] = DEFAULTS.idle_timeout_seconds,
    outlier_policy: Annotated[
        OutlierPolicy,
        typer.Option(
            envvar="GRADWIRE_OUTLIER_POLICY",
            help="What becomes of a worker whose update is far larger than the others': "
            "'quarantine' keeps its updates aside until an operator decides, 'clip' makes them "
            "smaller, 'off' takes them as they are.",
        ),
    ] = DEFAULTS.outlier_policy,
    outlier_norm_multiple: Annotated[
        float,
        typer.Option(
            envvar="GRADWIRE_OUTLIER_NORM_MULTIPLE",
            help="How many times the others' norm an update may have.",
        ),
    ] = DEFAULTS.outlier_norm_multiple,
    update_rate_max: Annotated[
        float,
        typer.Option(
            envvar="GRADWIRE_UPDATE_RATE_MAX",
            help="Updates per second that are taken from one worker; more wait, and slow it down.",
        ),
    ] = DEFAULTS.update_rate_max,
    drain_seconds: Annotated[
        float,
        typer.Option(
            envvar="GRADWIRE_DRAIN_SECONDS",
            help="How long it waits, when it is told to end, until what is under way has arrived "
            "at everyone.",
        ),
    ] = DEFAULTS.drain_seconds,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            envvar="GRADWIRE_CHECKPOINT",
            metavar="DIR",
            help="Folder to write the run to: while it goes on, when it is finished, and when the "
            "master stops. Who can write there can change the model.",
        ),
    ] = None,
    checkpoint_seconds: Annotated[
        float,
        typer.Option(
            envvar="GRADWIRE_CHECKPOINT_SECONDS",
            help="How often it is written, if it has changed.",
        ),
    ] = DEFAULTS.checkpoint_seconds,
    checkpoint_keep: Annotated[
        int,
        typer.Option(
            envvar="GRADWIRE_CHECKPOINT_KEEP",
            help="Checkpoints to keep, and of finished runs as many. Each takes 4 bytes for each "
            "parameter.",
        ),
    ] = DEFAULTS.checkpoint_keep,
    resume: Annotated[
        str | None,
        typer.Option(
            envvar="GRADWIRE_RESUME",
            metavar="DIR",
            help="Go on with the run of the newest checkpoint in this folder; where none can be "
            "used, do not start. 'auto' is the folder of --checkpoint, and may be empty.",
        ),
    ] = None,
    loop: Annotated[
        str,
        typer.Option(
            envvar="GRADWIRE_LOOP",
            help="Event loop: 'auto' takes uvloop where it is installed, else asyncio's own.",
        ),
    ] = "auto",
    config: Annotated[
        Path | None,
        typer.Option(
            envvar="GRADWIRE_CONFIG",
            help="TOML file with a table [master] of these options.",
            callback=load_config,
            is_eager=True,
        ),
    ] = None,
) -> None:
    """Run the master daemon: it lets workers join, keeps the parameters, and relays updates.

    SIGTERM or Ctrl-C stop it, when what is under way has arrived; a second one does so at once.
    Workers are told. SIGHUP has it read its keys and denied names again.
    Exit status: 0 stopped on request, 2 wrong usage, 3 address in use.
    """
    del config  # has done its work as a callback
    try:
        settings = MasterConfig(
            run=run,
            standby=standby,
            standby_of=standby_of,
            takeover_seconds=takeover_seconds,
            workers_max=workers_max,
            parameters_max=parameters_max,
            reassembly_bytes_max=reassembly_mib_max * MIB,
            relay_backlog_bytes_max=relay_backlog_mib_max * MIB,
            conflation_bytes_max=conflation_mib_max * MIB,
            slow_seconds=slow_seconds,
            rejoin_seconds=rejoin_seconds,
            recovery_seconds=recovery_seconds,
            update_log_bytes_max=update_log_mib_max * MIB,
            datagram_bytes=datagram_bytes,
            datagram_bytes_max=datagram_bytes_max,
            congestion=congestion,
            link_rate=link_rate,
            processes=processes,
            idle_timeout_seconds=idle_timeout_seconds,
            outlier_policy=outlier_policy,
            outlier_norm_multiple=outlier_norm_multiple,
            update_rate_max=update_rate_max,
            drain_seconds=drain_seconds,
            checkpoint_seconds=checkpoint_seconds,
            checkpoint_keep=checkpoint_keep,
        )
        _ = settings.connection  # refuses what a connection cannot do
        if standby_of is not None and resume is not None:
            raise UsageError("--resume with --standby-of: a standby gets the run from the primary")
        addresses = Addresses(
            listen=_listen_address(listen, network),
            http=None if http == "off" else http,
            advertise=advertise,
            transport=transport,
        )
        access = Access(token=find_token(http_token_file), public_metrics=public_metrics)
        keys = KeySource(
            key_file=_key_file(key_file, insecure=insecure),
            denied=denied_names(deny or ()),
            deny_file=deny_file,
            insecure=insecure,
        )
        with (
            _folder(checkpoint, checkpoint_keep, resuming=resume is not None) as folder,
            asyncio.Runner(loop_factory=lambda: new_event_loop(loop)) as runner,
        ):
            resumed = resumed_run(resume, checkpoint, settings)
            runner.run(_serve(settings, addresses, access, keys, resumed, folder))
    except AddressInUseError as error:
        typer.echo(f"gradwire master: {error}", err=True)
        raise typer.Exit(EXIT_ADDRESS_IN_USE) from None
    except GradwireError as error:
        typer.echo(f"gradwire master: {error}", err=True)
        raise typer.Exit(EXIT_USAGE) from None


async def _serve(
    settings: MasterConfig,
    addresses: Addresses,
    access: Access,
    keys: KeySource,
    run: Run | None,
    folder: CheckpointFolder | None,
) -> None:
    await Daemon(settings, addresses, access, keys, run=run, folder=folder).run()


@contextmanager
def _folder(path: Path | None, keep: int, *, resuming: bool) -> Iterator[CheckpointFolder | None]:
    """Hold the folder for checkpoints, if there is one."""
    if path is None:
        yield None
        return
    with closing(CheckpointFolder(path, keep, resuming=resuming)) as folder:
        yield folder


def _key_file(given: Path | None, *, insecure: bool) -> Path | None:
    """Return where the run key is, if there is one."""
    if given is not None or insecure:
        return given
    return credential(os.environ, RUN_CREDENTIAL)


def _listen_address(listen: str, network: str | None) -> str:
    """Return where to listen: the host may come from elsewhere, the port is `listen`'s."""
    host = os.environ.get("GRADWIRE_IP") or (local_address_in(network) if network else None)
    if host is None:
        return listen
    return show_address((host, split_address(listen)[1]))
