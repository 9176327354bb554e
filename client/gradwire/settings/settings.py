"""Settings of a session: from keywords, the environment, or a TOML file, in that order.

Every field is a keyword of `gradwire.join`, a variable ``GRADWIRE_<NAME>`` and a key of the table
``[session]`` of the file that ``config=`` or ``GRADWIRE_CONFIG`` names. Where nothing says
otherwise, torchrun's ``MASTER_ADDR``, ``RANK`` and ``WORLD_SIZE`` are honoured.
"""

import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final, Literal, get_args

from gradwire.errors import UsageError
from gradwire.settings.credentials import CipherName, check_key
from gradwire.settings.thresholds import CHOICES
from gradwire.settings.training import FeedbackName, ScaleName, TrainingSettings
from gradwire_protocol import ConnectionConfig
from gradwire_protocol.crypto.keys import RunKey, WorkerKey
from gradwire_protocol.limits import DATAGRAM_BYTES, DATAGRAM_BYTES_MAX
from gradwire_protocol.messages.kinds import RANKS_MAX
from gradwire_protocol.messages.layout import NAME_CHARACTERS_MAX
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

    master: str = ""
    """Where the master listens: ``host`` or ``host:port``."""

    run: str | None = None
    """Which run to join; None for the one that the master has."""

    rank: int | None = None
    """The rank to ask for; a free one is given if it is taken."""

    workers: int | None = None
    """How many workers `Session.wait` waits for unless it is told."""

    quantum: float | None = None
    """Resolution of the shared parameters, a power of two; None for 2^-24, or more where the
    first worker's parameters are too large for it."""

    connect_timeout_seconds: float = 10.0
    """How long the master may take to answer at all."""

    join_timeout_seconds: float = 120.0
    """How long joining may take as a whole, the transfer of the parameters included; and, where
    `warm_up_workers` lets it wait, how long no update may come."""

    finish_timeout_seconds: float = 600.0
    """How long `Session.finish` waits for the other workers to finish."""

    leave_timeout_seconds: float = 10.0
    """How long `Session.close` waits for what was sent to arrive."""

    idle_timeout_seconds: float = 30.0
    """The master is taken for dead when nothing was heard for this long."""

    reconnect_seconds: float = RECONNECT_SECONDS
    """How long to dial a master that was lost, before the session gives up."""

    alone_steps_max: int = 1_000
    """Steps that are trained without a connection to the master; further ones wait for it, because
    what one worker learns by itself drifts away from the others."""

    digest_seconds: float = DIGEST_SECONDS
    """How often the master is told the digest of the shared parameters, so that damage to them is
    found and mended; seldomer where computing it takes long, and never with 0."""

    codec_threads: int = 1
    """Threads that look for what to send, the training thread among them. One is right where the
    training keeps all cores busy between steps; two halve the time where a core is idle then."""

    datagram_bytes: int = DATAGRAM_BYTES
    """Size of full datagrams to begin with."""

    datagram_bytes_max: int = DATAGRAM_BYTES_MAX
    """Largest datagram to try: more is sent at once where the path carries it."""

    congestion: Congestion = "bbr"
    """Congestion control: ``"bbr"`` keeps its rate on lossy links, ``"cubic"`` gives way as TCP
    does, ``"static"`` is for links that are known and not shared."""

    transport: Transport = "auto"
    """What carries the packets: ``"auto"`` tries UDP first and takes TCP where nothing answers, as
    behind a firewall; ``"udp"`` and ``"tcp"`` try nothing else."""

    key_file: str = ""
    """File with this worker's key, made by ``gradwire keygen``; without one, the systemd credential
    ``worker.key``. A run key is taken, too: the worker makes its own key from it."""

    key: WorkerKey | RunKey | str | None = field(default=None, repr=False)
    """The key itself, or the text of one, instead of a file. Only as a keyword: environments and
    configuration files are read by too many."""

    cipher: CipherName = "auto"
    """What seals the packets where there is a key: ``"aes"`` is AES-256-GCM, ``"chacha"`` is
    ChaCha20-Poly1305, and ``"auto"`` the one that this machine computes faster."""

    loop: Loop = "auto"
    """Event loop of the network thread: uvloop where it is installed, unless told otherwise."""

    def __post_init__(self) -> None:
        """Refuse settings that cannot work, naming the value."""
        for setting in fields(self):
            self._check_type(setting.name)
        self._check_names()
        if not self.master:
            raise UsageError(
                "no master: pass master='host:port', or set GRADWIRE_MASTER, or MASTER_ADDR"
            )
        self._check_choices()
        self._check_keys()
        self.check_thresholds()
        self.check_training()
        for setting in fields(self):
            if setting.name.endswith("_seconds"):
                value = getattr(self, setting.name)
                may_be_zero = setting.name == "digest_seconds"
                if not 0 < value < float("inf") and not (value == 0 and may_be_zero):
                    raise UsageError(f"{setting.name}={value}; it has to be above 0 and finite")
        self.quantum_exponent  # noqa: B018  # refuse a quantum that is no power of two
        self.connection  # noqa: B018  # and what no connection takes
        self.make_policy()

    def _check_choices(self) -> None:
        if self.transport not in get_args(Transport):
            raise UsageError(f"transport={self.transport!r}; it is 'auto', 'udp' or 'tcp'")
        if self.loop not in get_args(Loop):
            raise UsageError(f"loop={self.loop!r}; it is 'auto', 'uvloop' or 'asyncio'")
        if self.congestion not in get_args(Congestion):
            raise UsageError(f"congestion={self.congestion!r}; it is 'bbr', 'cubic' or 'static'")
        if self.cipher not in get_args(CipherName):
            raise UsageError(f"cipher={self.cipher!r}; it is 'auto', 'aes' or 'chacha'")

    def _check_keys(self) -> None:
        check_key(self.key)
        if self.key is not None and self.key_file:
            raise UsageError(f"key and key_file={self.key_file!r}: a worker has one of them")

    def _check_names(self) -> None:
        """Refuse what the master would refuse with less to say."""
        if self.rank is not None and not 0 <= self.rank < RANKS_MAX:
            raise UsageError(f"rank={self.rank}; it is 0 to {RANKS_MAX - 1}")
        if self.workers is not None and not 1 <= self.workers <= RANKS_MAX:
            raise UsageError(f"workers={self.workers}; it is 1 to {RANKS_MAX}")
        if self.alone_steps_max < 0:
            raise UsageError(f"alone_steps_max={self.alone_steps_max}; it is 0 or more")
        if not 1 <= self.codec_threads <= CODEC_THREADS_MAX:
            raise UsageError(f"codec_threads={self.codec_threads}; it is 1 to {CODEC_THREADS_MAX}")
        if self.run is not None and (
            len(self.run) > NAME_CHARACTERS_MAX or not self.run.isprintable()
        ):
            raise UsageError(
                f"run={self.run!r}; it is a printable text of at most {NAME_CHARACTERS_MAX} "
                "characters"
            )

    def _check_type(self, name: str) -> None:
        """Refuse a value of another type: a file may hold anything."""
        if name == "key":  # of which no message may show anything
            return
        value = getattr(self, name)
        if name in _SWITCHES:
            if not isinstance(value, bool):
                raise UsageError(f"{name}={value!r}; it has to be true or false")
            return
        if name in _PAIRS:
            self._check_pair(name, value)
            return
        if name in _TEXTS:
            kind, fits = "a text", isinstance(value, str)
        elif name in _INTEGERS:
            kind, fits = "a whole number", isinstance(value, int)
        else:
            kind, fits = "a number", isinstance(value, int | float)
            fits |= name == "threshold" and hasattr(value, "observe")
            fits |= name in _NAMES and isinstance(value, str)
            fits |= name == "scale" and callable(value)
            if isinstance(value, int) and abs(value) > sys.float_info.max:
                kind, fits = f"at most {sys.float_info.max:g}", False
        optional = value is None and name in _OPTIONAL
        if not optional and (not fits or isinstance(value, bool)):
            raise UsageError(f"{name}={value!r}; it has to be {kind}")

    def _check_pair(self, name: str, value: object) -> None:
        """Refuse what is no two numbers; a file has them in a list."""
        if value is None:
            return
        if (
            not isinstance(value, list | tuple)
            or len(value) != 2
            or not all(isinstance(v, int | float) and not isinstance(v, bool) for v in value)
        ):
            raise UsageError(f"{name}={value!r}; it has to be two numbers")
        object.__setattr__(self, name, tuple(value))

    @property
    def quantum_exponent(self) -> int | None:
        """The quantum as a power of two; None where it was not given."""
        if self.quantum is None:
            return None
        for exponent in range(-40, 1):
            if 2.0**exponent == self.quantum:
                return exponent
        raise UsageError(f"quantum={self.quantum}; it is a power of two from 2^-40 to 1")

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
    """
    known = {setting.name for setting in fields(Settings)}
    values: dict[str, Any] = {
        name: _from_text(name, environ[variable], variable)
        for name, variable in TORCHRUN.items()
        if environ.get(variable)
    }
    path = config if config is not None else environ.get("GRADWIRE_CONFIG")
    if path:
        values |= _from_file(Path(path))
    if environ.get("GRADWIRE_KEY") or "key" in values:
        raise UsageError(
            "a key stands in the environment or in a configuration file, which too many can read: "
            "put it into a file of its own, and name that by key_file or GRADWIRE_KEY_FILE"
        )
    for name in known:
        variable = f"GRADWIRE_{name.upper()}"
        if environ.get(variable):
            values[name] = _from_text(name, environ[variable], variable)
    given = {name: value for name, value in keywords.items() if value is not None}
    if "key" in given:
        values.pop("key_file", None)  # a keyword comes first
    values |= given
    unknown = values.keys() - known
    if unknown:
        raise UsageError(f"unknown settings: {', '.join(sorted(unknown))}")
    values |= _key_file(values, environ)
    return Settings(**values)


def _key_file(values: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the setting that says where the key is, if there is one."""
    path = values.get("key_file")
    if path is None and "key" not in values:
        path = credential(environ, WORKER_CREDENTIAL)
    return {"key_file": fspath(path)} if isinstance(path, PathLike) else {}


def _from_file(path: Path) -> dict[str, Any]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8")).get("session", {})
    except (OSError, ValueError, RecursionError) as error:  # no TOML, or not even text
        raise UsageError(f"configuration file {str(path)!r}: {error}") from None
    if not isinstance(table, dict):
        raise UsageError(f"configuration file {str(path)!r}: 'session' is not a table")
    return table


_OPTIONAL: Final = frozenset(
    {
        "run",
        "rank",
        "workers",
        "quantum",
        "initial_threshold",
        "residual_clip",
        "staleness_bound",
        "warm_up_density",
        "warm_up_workers",
        *CHOICES,
    }
)
_INTEGERS: Final = frozenset(
    {
        "rank",
        "workers",
        "datagram_bytes",
        "datagram_bytes_max",
        "alone_steps_max",
        "shake_up_steps",
        "clip_steps",
        "staleness_bound",
        "warm_up_steps",
        "warm_up_workers",
        "buffer_steps",
        "codec_threads",
    }
)
_SWITCHES: Final = frozenset({"tensor_thresholds", "share_buffers", "share_optimizer_state"})
_PAIRS: Final = frozenset({"density_band"})
_NAMES: Final = {"feedback": get_args(FeedbackName), "scale": get_args(ScaleName)}
"""What may be said in place of a number."""

_SWITCH_TEXTS: Final = {"true": True, "1": True, "false": False, "0": False}
_TEXTS: Final = frozenset(
    {
        "master",
        "run",
        "finish_residual",
        "momentum",
        "loop",
        "congestion",
        "transport",
        "key_file",
        "cipher",
    }
)


def _from_text(name: str, text: str, variable: str) -> Any:
    if name in _TEXTS:
        return text
    if name in _SWITCHES:
        if text.lower() not in _SWITCH_TEXTS:
            raise UsageError(f"{variable}={text!r} is neither true nor false")
        return _SWITCH_TEXTS[text.lower()]
    if text in _NAMES.get(name, ()):
        return text
    try:
        if name in _PAIRS:
            return tuple(map(float, text.split(",")))
        return int(text) if name in _INTEGERS else float(text)
    except ValueError:
        raise UsageError(f"{variable}={text!r} is not a number") from None
