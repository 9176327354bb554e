"""Settings of a session: from keywords, the environment, or a TOML file, in that order.

Every field is a keyword of `gradwire.join`, a variable ``GRADWIRE_<NAME>`` and a key of the table
``[session]`` of the file that ``config=`` or ``GRADWIRE_CONFIG`` names. What a launcher says, as
torchrun in ``MASTER_ADDR``, ``RANK`` and ``WORLD_SIZE``, comes last.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final, Literal, TypedDict

from gradwire.errors import GradwireWarning, UsageError
from gradwire.settings.credentials import check_key
from gradwire.settings.launchers import launcher_variables
from gradwire.settings.training import (
    Feedback,
    FinishResidual,
    Momentum,
    Scale,
    StalenessBound,
    TrainingSettings,
)
from gradwire_codecs import ThresholdPolicy
from gradwire_protocol import ConnectionConfig
from gradwire_protocol.crypto.keys import IssuingKey, RunKey, WorkerKey
from gradwire_protocol.messages.kinds import WORKERS_MAX
from gradwire_protocol.messages.layout import NAME_CHARACTERS_MAX
from gradwire_protocol.messages.modes.mode import Mode, parse_mode
from gradwire_protocol.settings import check_settings, declared_settings, setting
from gradwire_udp.files.configuration import read_table, unknown_names, unknown_variables
from gradwire_udp.files.keys import WORKER_CREDENTIAL, credential

Transport = Literal["auto", "udp", "tcp"]
OnLost = Literal["raise", "finish"]
LogLevel = Literal["debug", "info", "warning", "error"]

RECONNECT_SECONDS: Final = 600.0
"""Enough for a machine to restart."""

IN_ROUNDS: Final[dict[str, Any]] = {
    "feedback": "shared",
    "scale": "sum",
    "momentum": "keep",
    "staleness_bound": "off",
    "finish_residual": "send",
    "warm_up_workers": None,
}
"""What settings mean where workers contribute to rounds: the mean needs no scale, and nothing is
late."""


@dataclass(frozen=True, kw_only=True)
class Settings(TrainingSettings):
    """How a session behaves. Durations are in seconds, sizes in bytes, as the names say."""

    master: str = setting(
        "",
        "Where the master listens: `host` or `host:port`. Or where to look it up: "
        "`zk://host:2181/path` for a master with `--announce`, `dns+srv://_gradwire._udp.domain` "
        "for SRV records.",
    )

    mode: Mode | str | None = setting(
        None,
        "How workers train together: `gradwire.Sharing()`, `Synchronous()`, `Averaging()`, "
        "`DiLoCo()` or `Central()`, or as text, as in 'averaging(every=5, bits=4)'. The first "
        "worker's counts for the run. None means the mode of the run or of its master, otherwise "
        "'sharing'.",
        accepts=lambda value: isinstance(value, Mode),
        accepts_text="a mode such as gradwire.Averaging(every=16)",
    )

    run: str | None = setting(
        None,
        "Name of the run to join; None for whichever run the master has.",
        characters_max=NAME_CHARACTERS_MAX,
    )

    rank: int | None = setting(
        None,
        "Rank to ask for; the master gives a free one if it is taken.",
        least=0,
        most=WORKERS_MAX - 1,
    )

    workers: int | None = setting(
        None,
        "How many workers there will be. `join` waits for them until the run has begun, at most "
        "`start_timeout_seconds`. With None, and no launcher that sets it, join waits for nobody.",
        least=1,
        most=WORKERS_MAX,
    )

    quantum: float | None = setting(
        None,
        "Resolution of the shared parameters, a power of two; None for 2^-24, or more where the "
        "first worker's parameters are too large for it.",
    )

    connect_timeout_seconds: float = setting(
        10.0,
        "How long to wait for the master's first answer once its machine is known to be up: when "
        "nothing listens at the port, or nothing answers there, as with a wrong key.",
        above=0,
    )

    join_timeout_seconds: float = setting(
        120.0,
        "Limit for joining as a whole, including the transfer of the parameters. A worker that "
        "`warm_up_workers` makes wait gives up when no update arrives for this long.",
        above=0,
    )

    start_timeout_seconds: float = setting(
        120.0,
        "How long `join` waits for a master whose machine does not answer at all and, if "
        "`workers` is set, for the other workers of a run that has not begun. Training then "
        "begins with those that are there.",
        least=0,
    )

    finish_timeout_seconds: float = setting(
        600.0, "How long `Session.finish` waits for the other workers to finish.", above=0
    )

    idle_timeout_seconds: float = setting(
        30.0, "The master counts as lost when nothing arrives from it for this long.", above=0
    )

    reconnect_seconds: float = setting(
        RECONNECT_SECONDS,
        "How long to dial a lost master before the session gives up.",
        above=0,
    )

    on_lost: OnLost = setting(
        "raise",
        "What to do when the master is lost for good: 'raise' ends it with a "
        "`ConnectionLostError`, 'finish' lets the script go on alone to its own end, with a "
        "warning. Either way the model keeps what was trained.",
    )

    transport: Transport = setting(
        "auto",
        "What carries the packets: 'auto' tries UDP first, then TCP if nothing answers, as behind "
        "a firewall; 'udp' and 'tcp' try only that.",
    )

    key_file: str = setting(
        "",
        "File with this worker's key, made by `gradwire keygen`; by default the systemd "
        "credential `worker.key`. From a run key or an issuing key, the worker derives a key of "
        "its own.",
    )

    key: WorkerKey | IssuingKey | RunKey | str | None = setting(
        None,
        "The key itself, or its text, instead of a file. Only as a keyword: too many processes "
        "can read environments and configuration files.",
        is_secret=True,
    )

    log_level: LogLevel = setting(
        "info",
        "Least severe messages that go to stderr. If the script has set up logging itself, "
        "gradwire writes nothing there.",
    )

    def __post_init__(self) -> None:
        """Refuse settings that cannot work, naming the value."""
        self.quantum_exponent  # noqa: B018  # refuses a quantum that is no power of two
        self.run_mode  # noqa: B018  # refuses what is no mode
        check_settings(self)
        if self.density_band is not None:  # TOML has no tuples
            object.__setattr__(self, "density_band", tuple(self.density_band))
        if not isinstance(self.averaged_buffers, str):
            object.__setattr__(self, "averaged_buffers", tuple(self.averaged_buffers))
        if not self.master:
            raise UsageError(
                "no master: pass master='host:port', or set GRADWIRE_MASTER, or MASTER_ADDR"
            )
        check_key(self.key)
        if self.key is not None and self.key_file:
            raise UsageError(f"key and key_file={self.key_file!r}: pass one of them")
        self.check_thresholds()
        self.connection  # noqa: B018  # refuses values that no connection takes
        self.make_policy()

    @property
    def quantum_exponent(self) -> int | None:
        """The exponent of `quantum`, to base 2; None without a quantum."""
        if self.quantum is None:
            return None
        for exponent in range(-40, 1):
            if 2.0**exponent == self.quantum:
                return exponent
        raise UsageError(f"quantum={self.quantum!r}; it has to be a power of two from 2^-40 to 1")

    @property
    def run_mode(self) -> Mode | None:
        """The mode that this worker asks for; None for that of the run."""
        return parse_mode(self.mode) if isinstance(self.mode, str) else self.mode

    def in_mode(self, mode: Mode) -> "Settings":
        """Return the settings as they hold in a run of this mode.

        Raises
        ------
        UsageError
            If one of them has no meaning there.
        """
        if not mode.has_rounds:
            return self
        usual = {each.name: each.default for each in fields(TrainingSettings)}
        for name, value in IN_ROUNDS.items():
            given = getattr(self, name)
            if given not in (usual[name], value):
                raise UsageError(
                    f"{name}={given!r}: in a run with mode {mode} workers train on what all have, "
                    f"and wait for each other; leave out {name}"
                )
        return replace(self, **IN_ROUNDS)

    def with_announced(
        self, announced: Mapping[str, Any], given: Mapping[str, Any], place: str
    ) -> "Settings":
        """Return the settings with those that a master announces, where none were given here.

        Parameters
        ----------
        given : mapping
            What was given here, by name.
        place : str
            Where they are announced, for messages.

        Raises
        ------
        UsageError
            If one of them is unknown or cannot work.
        """
        unknown = announced.keys() - declared_settings(Settings).keys()
        if unknown:
            raise UsageError(
                f"the master announces unknown settings at {place}: "
                f"{', '.join(sorted(unknown))}; install the gradwire that it has"
            )
        try:
            return replace(
                self, **{name: value for name, value in announced.items() if name not in given}
            )
        except (UsageError, TypeError) as error:
            raise UsageError(f"a setting announced at {place} cannot work: {error}") from None

    @property
    def connection(self) -> ConnectionConfig:
        """Settings of the connection to the master."""
        return ConnectionConfig(
            idle_timeout_seconds=self.idle_timeout_seconds,
            connect_timeout_seconds=self.connect_timeout_seconds,
        )


def resolve_settings(
    keywords: Mapping[str, Any],
    environ: Mapping[str, str],
    config: str | PathLike[str] | None = None,
) -> Settings:
    """Return the settings that `given_settings` puts together."""
    return Settings(**given_settings(keywords, environ, config))


def given_settings(
    keywords: Mapping[str, Any],
    environ: Mapping[str, str],
    config: str | PathLike[str] | None = None,
) -> dict[str, Any]:
    """Put settings together from keywords, the environment and a file; return those given there.

    Parameters
    ----------
    keywords : mapping
        Arguments of the caller; None counts as not passed.
    config : path or None
        TOML file; None for ``GRADWIRE_CONFIG``.

    Raises
    ------
    UsageError
        If a name is unknown or a value is not valid.

    Warns
    -----
    GradwireWarning
        About variables ``GRADWIRE_...`` and tables that nothing reads: most are misspelt.
    """
    known = declared_settings(Settings)
    values = _parse_variables(launcher_variables(environ), environ)
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
            "a key stands in the environment or in a configuration file, which too many processes "
            "can read: put it into a file of its own, named by key_file or GRADWIRE_KEY_FILE"
        )
    values |= _parse_variables({name: f"GRADWIRE_{name.upper()}" for name in known}, environ)
    given = {name: value for name, value in keywords.items() if value is not None}
    if "key" in given:
        values.pop("key_file", None)  # the keyword takes precedence
    values |= given
    unknown = values.keys() - known.keys()
    if unknown:
        raise UsageError(f"unknown settings: {unknown_names(unknown, known)}")
    path = values.get("key_file")
    if path is None and "key" not in values:
        path = credential(environ, WORKER_CREDENTIAL)
    if isinstance(path, PathLike):
        values["key_file"] = fspath(path)
    return values


def _parse_variables(variables: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings that variables of the environment give; an empty one gives none."""
    known = declared_settings(Settings)
    return {
        name: known[name].parse(environ[variable], variable)
        for name, variable in variables.items()
        if environ.get(variable)
    }


class SettingKeywords(TypedDict, total=False):
    """Every keyword is optional; None counts as not passed."""

    master: str | None
    mode: Mode | str | None
    run: str | None
    rank: int | None
    workers: int | None
    quantum: float | None
    connect_timeout_seconds: float | None
    join_timeout_seconds: float | None
    start_timeout_seconds: float | None
    finish_timeout_seconds: float | None
    idle_timeout_seconds: float | None
    reconnect_seconds: float | None
    on_lost: OnLost | None
    transport: Transport | None
    key_file: str | PathLike[str] | None
    key: WorkerKey | IssuingKey | RunKey | str | None
    log_level: LogLevel | None
    feedback: Feedback | None
    finish_residual: FinishResidual | None
    momentum: Momentum | None
    scale: Scale | None
    staleness_bound: StalenessBound | None
    warm_up_workers: int | None
    share_buffers: bool | None
    averaged_buffers: str | tuple[str, ...] | None
    buffer_steps: int | None
    log_histograms_every: int | None
    threshold: float | ThresholdPolicy | None
    target_density: float | None
    density_band: tuple[float, float] | None
    shake_up_steps: int | None
    warm_up_steps: int | None
