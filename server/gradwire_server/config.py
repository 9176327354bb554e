"""Settings of a master, each with its default, its unit and its reason."""

from dataclasses import dataclass
from typing import Final

from gradwire_protocol import ConnectionConfig, UsageError
from gradwire_protocol.limits import (
    GIB,
    MIB,
    REASSEMBLY_BYTES_MAX,
    WINDOW_BYTES,
    WINDOW_BYTES_MIN,
)
from gradwire_protocol.messages.fields import ADDRESS_CHARACTERS_MAX
from gradwire_protocol.messages.kinds import WORKERS_MAX
from gradwire_protocol.messages.layout import ELEMENTS_MAX, NAME_CHARACTERS_MAX
from gradwire_protocol.messages.modes.mode import parse_mode
from gradwire_protocol.settings import check_settings, setting
from gradwire_server.updates.update_rate import UPDATE_RATE_MAX
from gradwire_server.updates.vetting import OUTLIER_NORM_MULTIPLE, OutlierPolicy

CONNECTIONS_SPARE: Final = 8
"""Connections beyond `workers_max`: one worker too many can connect, and is told why it is
refused."""


CHECKPOINTS_MAX: Final = 100_000
"""Two months of one a minute. More files would make every listing of the folder slow."""

RUNS_MAX: Final = 64
"""Most runs of a daemon: every event is offered to their masters until one takes it."""

BACKLOG_BYTES_MAX: Final = WINDOW_BYTES
"""The credit that a worker gives the master: more bytes would only wait at the master."""

UPDATE_LOG_BYTES_MAX: Final = 64 * MIB
"""Thirty seconds of a hundred updates of 20 KB a second. It can take three times as much memory,
192 MiB: a message has the rows that it came in, its payload in one piece and, where paths carry
datagrams of other sizes, rows of another size. Between two passes, sums of what is in it may take
half of it besides, and updates that are decoded a quarter."""

CONFLATION_BYTES_MAX: Final = 2 * GIB
"""4 bytes a parameter: what a slow worker with a model of 536 million parameters lacks, or 112 of
them with one of 4.8 million that are all at other places."""


@dataclass(frozen=True, slots=True)
class RelayLimits:
    """How much memory a relay may use, in bytes."""

    log_bytes_max: int = UPDATE_LOG_BYTES_MAX
    """Update log, for workers that return."""
    backlog_bytes_max: int = BACKLOG_BYTES_MAX
    """Updates under way to one member."""
    conflation_bytes_max: int = CONFLATION_BYTES_MAX
    """What the log may take beyond that for slow members, over all runs."""


RELAY_LIMITS: Final = RelayLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterConfig:
    """Settings of a master. Durations are in seconds, sizes in bytes, as the names say."""

    run: str | None = setting(
        None,
        "Name of the only run to serve. Without it, runs of any names are served.",
        characters_max=NAME_CHARACTERS_MAX,
    )
    mode: str | None = setting(
        None,
        "Mode of the runs: sharing, synchronous, averaging, diloco or central, with options as in "
        "'averaging(every=5, bits=4)'. Workers that ask for another one are refused. Without it, "
        "the first worker of a run chooses.",
        characters_max=200,
    )
    runs_max: int = setting(
        16,
        "Runs at once. All other limits hold for all of them together.",
        least=1,
        most=RUNS_MAX,
    )
    standby: str | None = setting(
        None,
        "Address of this master's standby, as workers reach it: they go there when this master is "
        "lost. This master admits workers when its standby is connected.",
        characters_max=ADDRESS_CHARACTERS_MAX,
        metavar="HOST:PORT",
    )
    standby_of: str | None = setting(
        None,
        "Be the standby of the master at this address, whose --standby is this one's address: "
        "follow its run, and take over when it is lost.",
        characters_max=ADDRESS_CHARACTERS_MAX,
        metavar="HOST:PORT",
    )
    # Within this time a process manager may have restarted the primary.
    takeover_seconds: float = setting(
        5.0,
        "How long after it last heard from the lost master a standby takes over.",
        above=0,
    )
    # With the default memory, each of 56 can have 16 MiB under way.
    workers_max: int = setting(56, "Workers and observers at once.", least=1, most=WORKERS_MAX)
    # Each takes 4 bytes more in every copy for joining workers, and 4 while a checkpoint is
    # written.
    parameters_max: int = setting(
        1_000_000_000,
        "Parameters of a model; each takes 4 bytes of memory.",
        least=1,
        most=ELEMENTS_MAX,
    )
    reassembly_bytes_max: int | None = setting(
        None,
        "MiB of memory for incoming messages; None for 1024, or more if that many workers need it.",
        above=0,
        unit=MIB,
    )
    # Messages other than updates cannot be added up: a worker for which as many bytes of these wait
    # is dropped as too slow.
    relay_backlog_bytes_max: int = setting(
        BACKLOG_BYTES_MAX,
        "MiB in flight to one worker; whatever else it lacks is added up.",
        above=0,
        unit=MIB,
    )
    # Up to 4 bytes a parameter, or 8 MiB if that is more, for each place in the log at which a slow
    # worker is. Where there is no room, the one that is furthest behind is dropped.
    conflation_bytes_max: int = setting(
        CONFLATION_BYTES_MAX,
        "MiB for the added-up updates that slow workers lack, beyond --update-log-mib-max.",
        above=0,
        unit=MIB,
    )
    slow_seconds: float = setting(
        60.0, "A slow worker that takes nothing for this long is dropped.", above=0
    )
    rejoin_seconds: float = setting(
        600.0, "How long the rank of a worker that lost its connection is kept for it.", above=0
    )
    # The master waits so long for the first returning worker before a new worker may begin another
    # run, and then as long for the others. A worker dials every second.
    recovery_seconds: float = setting(
        5.0,
        "How long a master waits after its start for the workers of a run that it may have served "
        "before.",
        least=0,
    )
    new_run: bool = setting(
        False,
        "Begin a new run at this start: workers of a run that this master served before are "
        "refused, and no checkpoint is resumed.",
    )
    update_log_bytes_max: int = setting(
        UPDATE_LOG_BYTES_MAX,
        "MiB of accepted updates that are kept for workers that come back; one that has missed "
        "more is sent the whole replica.",
        above=0,
        unit=MIB,
    )
    link_rate: float | None = setting(
        None,
        "Mbit/s that the master may send to all workers together. Without it, the master learns "
        "what its link takes.",
        above=0,
        metavar="Mbit/s",
    )
    idle_timeout_seconds: float = setting(
        30.0, "A worker that is silent for this long is disconnected."
    )
    outliers: OutlierPolicy = setting(
        "warn",
        "What to do when an update is far larger than the others': 'warn' counts and logs it; "
        "'quarantine' keeps the updates of its worker aside until an operator decides, with eight "
        "workers or more; 'off' does not check.",
    )
    outlier_norm_multiple: float = setting(
        OUTLIER_NORM_MULTIPLE, "How many times the others' norm an update may have.", least=1
    )
    update_rate_max: float = setting(
        UPDATE_RATE_MAX,
        "Updates per second that are taken from one worker; more wait, and slow it down.",
        above=0,
    )
    # Docker kills a container 10 s after SIGTERM, and the last checkpoint is written after this.
    drain_seconds: float = setting(
        5.0,
        "How long a master that is told to stop waits for messages in flight to arrive.",
        above=0,
    )
    # When the master and all workers crash, this much training is lost.
    checkpoint_seconds: float = setting(
        60.0, "How often a checkpoint is written, if the run has changed.", above=0
    )
    checkpoint_keep: int = setting(
        3,
        "Checkpoints to keep, and of finished runs as many. Each takes 4 to 8 bytes for each "
        "parameter.",
        least=1,
        most=CHECKPOINTS_MAX,
    )
    join_timeout_seconds: float = setting(
        10.0,
        "A connection that has not asked for anything by then is closed.",
        above=0,
        is_option=False,
    )
    stable_interval_seconds: float = setting(
        0.5,
        "How often workers are told which updates are stable, if that has changed.",
        above=0,
        is_option=False,
    )

    def __post_init__(self) -> None:
        """Raise `UsageError` for settings that cannot work."""
        check_settings(self)
        if self.mode is not None:
            parse_mode(self.mode)
        if self.window_bytes < WINDOW_BYTES_MIN:
            needed = self.connections_max * WINDOW_BYTES_MIN
            raise UsageError(
                f"reassembly_bytes_max={self.reassembly_bytes_max} is too little for "
                f"workers_max={self.workers_max}, which needs {needed}: pass --reassembly-mib-max "
                f"{-(-needed // MIB)}"
            )
        if self.standby is not None and self.standby_of is not None:
            raise UsageError(
                f"standby={self.standby!r} and standby_of={self.standby_of!r}: a master has a "
                "standby or is one, not both"
            )

    @property
    def relay(self) -> RelayLimits:
        """Memory limits of a run's relay."""
        return RelayLimits(
            self.update_log_bytes_max, self.relay_backlog_bytes_max, self.conflation_bytes_max
        )

    @property
    def link_bytes_per_second(self) -> float | None:
        """`link_rate` in bytes per second."""
        return None if self.link_rate is None else self.link_rate * 1e6 / 8

    @property
    def connections_max(self) -> int:
        """Most connections at once."""
        return self.workers_max + CONNECTIONS_SPARE

    @property
    def reassembly_bytes(self) -> int:
        """Most memory for messages on their way in, of all workers together."""
        if self.reassembly_bytes_max is not None:
            return self.reassembly_bytes_max
        return max(REASSEMBLY_BYTES_MAX, self.connections_max * WINDOW_BYTES_MIN)

    @property
    def window_bytes(self) -> int:
        """Credit of one worker, so that all workers together stay below `reassembly_bytes`."""
        return min(self.reassembly_bytes // self.connections_max, WINDOW_BYTES)

    @property
    def connection(self) -> ConnectionConfig:
        """The settings of every connection."""
        return ConnectionConfig(
            window_bytes=self.window_bytes,
            idle_timeout_seconds=self.idle_timeout_seconds,
        )
