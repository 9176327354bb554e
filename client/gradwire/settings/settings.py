"""Settings of a session: from keywords, the environment, or a TOML file, in that order.

Every field is a keyword of `gradwire.join`, a variable ``GRADWIRE_<NAME>`` and a key of the table
``[session]`` of the file that ``config=`` or ``GRADWIRE_CONFIG`` names. Where nothing says
otherwise, torchrun's ``MASTER_ADDR``, ``RANK`` and ``WORLD_SIZE`` are honoured.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final, Literal

from gradwire.errors import GradwireWarning, UsageError
from gradwire.settings.credentials import CipherName, check_key
from gradwire.settings.training import TrainingSettings
from gradwire_protocol import ConnectionConfig
from gradwire_protocol.crypto.keys import RunKey, WorkerKey
from gradwire_protocol.limits import DATAGRAM_BYTES, DATAGRAM_BYTES_MAX
from gradwire_protocol.messages.kinds import RANKS_MAX
from gradwire_protocol.messages.layout import NAME_CHARACTERS_MAX
from gradwire_protocol.settings import check_settings, declared_settings, setting
from gradwire_udp.files.configuration import read_table, unknown_names, unknown_variables
from gradwire_udp.files.keys import WORKER_CREDENTIAL, credential

Loop = Literal["auto", "uvloop", "asyncio"]
Congestion = Literal["bbr", "cubic", "static"]
Transport = Literal["auto", "udp", "tcp"]

RECONNECT_SECONDS: Final = 600.0
"""A machine has been started again by then."""

DIGEST_SECONDS: Final = 5.0
"""Damage is found within seconds, for 0.2 ms per million parameters."""

CODEC_THREADS_MAX: Final = 64
"""Memory is what the codec waits for, and a few threads use all there is of it."""

TORCHRUN: Final = {"master": "MASTER_ADDR", "rank": "RANK", "workers": "WORLD_SIZE"}
"""Variables of torchrun, and what they mean to us. Its MASTER_PORT is another service's."""


@dataclass(frozen=True, kw_only=True)
class Settings(TrainingSettings):
    """How a session behaves. Durations are in seconds, sizes in bytes, as the names say."""

    master: str = setting("", "Where the master listens: `host` or `host:port`.")

    run: str | None = setting(
        None,
        "Which run to join; None for the one that the master has.",
        characters_max=NAME_CHARACTERS_MAX,
    )

    rank: int | None = setting(
        None,
        "The rank to ask for; a free one is given if it is taken.",
        least=0,
        most=RANKS_MAX - 1,
    )

    workers: int | None = setting(
        None,
        "How many workers `Session.wait` waits for unless it is told.",
        least=1,
        most=RANKS_MAX,
    )

    quantum: float | None = setting(
        None,
        "Resolution of the shared parameters, a power of two; None for 2^-24, or more where the "
        "first worker's parameters are too large for it.",
    )

    connect_timeout_seconds: float = setting(
        10.0, "How long the master may take to answer at all.", above=0
    )

    join_timeout_seconds: float = setting(
        120.0,
        "How long joining may take as a whole, the transfer of the parameters included; and, "
        "where `warm_up_workers` lets it wait, how long no update may come.",
        above=0,
    )

    finish_timeout_seconds: float = setting(
        600.0, "How long `Session.finish` waits for the other workers to finish.", above=0
    )

    leave_timeout_seconds: float = setting(
        10.0, "How long `Session.close` waits for what was sent to arrive.", above=0
    )

    idle_timeout_seconds: float = setting(
        30.0, "The master is taken for dead when nothing was heard for this long.", above=0
    )

    reconnect_seconds: float = setting(
        RECONNECT_SECONDS,
        "How long to dial a master that was lost, before the session gives up.",
        above=0,
    )

    alone_steps_max: int = setting(
        1_000,
        "Steps that are trained without a connection to the master; further ones wait for it, "
        "because what one worker learns by itself drifts away from the others.",
        least=0,
    )

    digest_seconds: float = setting(
        DIGEST_SECONDS,
        "How often the master is told the digest of the shared parameters, so that damage to "
        "them is found and mended; seldomer where computing it takes long, and never with 0.",
        above=0,
        or_else=(0,),
    )

    codec_threads: int = setting(
        1,
        "Threads that look for what to send, the training thread among them. One is right where "
        "the training keeps all cores busy between steps; two halve the time where a core is "
        "idle then.",
        least=1,
        most=CODEC_THREADS_MAX,
    )

    datagram_bytes: int = setting(DATAGRAM_BYTES, "Size of full datagrams to begin with.")

    datagram_bytes_max: int = setting(
        DATAGRAM_BYTES_MAX,
        "Largest datagram to try: more is sent at once where the path carries it.",
    )

    congestion: Congestion = setting(
        "bbr",
        "Congestion control: 'bbr' keeps its rate on lossy links, 'cubic' gives way as TCP "
        "does, 'static' is for links that are known and not shared.",
    )

    transport: Transport = setting(
        "auto",
        "What carries the packets: 'auto' tries UDP first and takes TCP where nothing answers, "
        "as behind a firewall; 'udp' and 'tcp' try nothing else.",
    )

    key_file: str = setting(
        "",
        "File with this worker's key, made by `gradwire keygen`; without one, the systemd "
        "credential `worker.key`. A run key is taken, too: the worker makes its own key from "
        "it.",
    )

    key: WorkerKey | RunKey | str | None = setting(
        None,
        "The key itself, or the text of one, instead of a file. Only as a keyword: environments "
        "and configuration files are read by too many.",
        is_secret=True,
    )

    cipher: CipherName = setting(
        "auto",
        "What seals the packets where there is a key: 'aes' is AES-256-GCM, 'chacha' is "
        "ChaCha20-Poly1305, and 'auto' the one that this machine computes faster.",
    )

    loop: Loop = setting(
        "auto",
        "Event loop of the network thread: uvloop where it is installed, unless told otherwise.",
    )

    def __post_init__(self) -> None:
        """Refuse settings that cannot work, naming the value."""
        self.quantum_exponent  # noqa: B018  # refuse a quantum that is no power of two
        check_settings(self)
        if self.density_band is not None:  # a file has a list
            object.__setattr__(self, "density_band", tuple(self.density_band))
        if not self.master:
            raise UsageError(
                "no master: pass master='host:port', or set GRADWIRE_MASTER, or MASTER_ADDR"
            )
        check_key(self.key)
        if self.key is not None and self.key_file:
            raise UsageError(f"key and key_file={self.key_file!r}: a worker has one of them")
        self.check_thresholds()
        self.connection  # noqa: B018  # refuse what no connection takes
        self.make_policy()

    @property
    def quantum_exponent(self) -> int | None:
        """The quantum as a power of two; None where it was not given."""
        if self.quantum is None:
            return None
        for exponent in range(-40, 1):
            if 2.0**exponent == self.quantum:
                return exponent
        raise UsageError(f"quantum={self.quantum!r}; it is a power of two from 2^-40 to 1")

    @property
    def connection(self) -> ConnectionConfig:
        """The settings of the connection to the master."""
        return ConnectionConfig(
            datagram_bytes=self.datagram_bytes,
            datagram_bytes_max=self.datagram_bytes_max,
            congestion=self.congestion,
            idle_timeout_seconds=self.idle_timeout_seconds,
            connect_timeout_seconds=self.connect_timeout_seconds,
        )


def resolve_settings(
    keywords: Mapping[str, Any],
    environ: Mapping[str, str],
    config: str | PathLike[str] | None = None,
) -> Settings:
    """Put settings together from all places they can come from.

    Parameters
    ----------
    keywords : mapping
        What the caller passed; None means that it was not passed.
    environ : mapping
        The environment.
    config : path or None
        TOML file; None for ``GRADWIRE_CONFIG``.

    Raises
    ------
    UsageError
        If a name is not known, or a value cannot be what it should be.

    Warns
    -----
    GradwireWarning
        Of variables ``GRADWIRE_...`` and of tables that nothing reads: most are misspelt.
    """
    known = declared_settings(Settings)
    values = _parse_variables(TORCHRUN, environ)
    path = config if config is not None else environ.get("GRADWIRE_CONFIG")
    warning = unknown_variables(environ)
    if warning is not None:
        warnings.warn(warning, GradwireWarning, stacklevel=3)
    if path:
        table, warning = read_table(Path(path), "session")
        values |= table
        if warning is not None:
            warnings.warn(warning, GradwireWarning, stacklevel=3)
    if environ.get("GRADWIRE_KEY") or "key" in values:
        raise UsageError(
            "a key stands in the environment or in a configuration file, which too many can read: "
            "put it into a file of its own, and name that by key_file or GRADWIRE_KEY_FILE"
        )
    values |= _parse_variables({name: f"GRADWIRE_{name.upper()}" for name in known}, environ)
    given = {name: value for name, value in keywords.items() if value is not None}
    if "key" in given:
        values.pop("key_file", None)  # a keyword comes first
    values |= given
    unknown = values.keys() - known.keys()
    if unknown:
        raise UsageError(f"unknown settings: {unknown_names(unknown, known)}")
    path = values.get("key_file")
    if path is None and "key" not in values:
        path = credential(environ, WORKER_CREDENTIAL)
    if isinstance(path, PathLike):
        values["key_file"] = fspath(path)
    return Settings(**values)


def _parse_variables(variables: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings that variables of the environment give; an empty one gives none."""
    known = declared_settings(Settings)
    return {
        name: known[name].parse(environ[variable], variable)
        for name, variable in variables.items()
        if environ.get(variable)
    }
