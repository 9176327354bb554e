"""How a master behaves: every setting with its default, its unit and its reason."""

from dataclasses import dataclass
from typing import Final, get_args

from gradwire_protocol import ConnectionConfig, UsageError
from gradwire_protocol.limits import (
    DATAGRAM_BYTES,
    DATAGRAM_BYTES_MAX,
    GIB,
    MIB,
    REASSEMBLY_BYTES_MAX,
    WINDOW_BYTES,
    WINDOW_BYTES_MIN,
)
from gradwire_protocol.messages.fields import ADDRESS_CHARACTERS_MAX
from gradwire_protocol.messages.kinds import RANKS_MAX
from gradwire_protocol.messages.layout import ELEMENTS_MAX, NAME_CHARACTERS_MAX
from gradwire_server.updates.update_log import UPDATE_LOG_BYTES_MAX
from gradwire_server.updates.update_rate import UPDATE_RATE_MAX
from gradwire_server.updates.vetting import OUTLIER_NORM_MULTIPLE, OutlierPolicy

CONNECTIONS_SPARE: Final = 8
"""Connections beyond the workers of a run, so that one worker too many is told so."""

PROCESSES_MAX: Final = 64
"""Far below the 256 that the byte of a session id can tell apart which says whose a packet is: so
first packets, where that byte is random, spread evenly."""

CHECKPOINTS_MAX: Final = 100_000
"""Kept at the most: two months of one a minute. More would make every look at the folder slow."""


BACKLOG_BYTES_MAX: Final = WINDOW_BYTES
"""What a worker lets us have under way: more would only wait here."""

CONFLATION_BYTES_MAX: Final = 2 * GIB
"""Both sums of two workers for a model of 134 million parameters, or of 56 for one of 4.8."""


@dataclass(frozen=True, slots=True)
class RelayLimits:
    """What a relay may keep, in bytes."""

    log_bytes_max: int = UPDATE_LOG_BYTES_MAX
    """For workers that come back."""
    backlog_bytes_max: int = BACKLOG_BYTES_MAX
    """Updates queued for one member."""
    conflation_bytes_max: int = CONFLATION_BYTES_MAX
    """Sums for members that are slow."""


RELAY_LIMITS: Final = RelayLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterConfig:
    """Settings of a master. Durations are in seconds, sizes in bytes, as the names say."""

    run: str | None = None
    """The only run that is served; None for whichever comes first, one after the other."""

    standby: str | None = None
    """``host:port`` of its standby, as workers reach it. It begins when that is connected."""

    standby_of: str | None = None
    """``host:port`` of the master whose standby it is."""

    takeover_seconds: float = 5.0
    """How long a standby goes on dialling the master that it has lost before it takes over: one
    that is started anew in its place may be there again by then, and nothing has to move."""

    workers_max: int = 56
    """Workers and observers at once. With the default memory, each can have 16 MiB under way."""

    reassembly_bytes_max: int = REASSEMBLY_BYTES_MAX
    """Memory for messages on their way in, over all workers."""

    parameters_max: int = 1_000_000_000
    """Parameters of a run; each takes 4 bytes of memory, 4 more for every worker that is being sent
    them, and 4 more while a checkpoint is written."""

    relay_backlog_bytes_max: int = BACKLOG_BYTES_MAX
    """What is under way to one worker before later updates are added up for it, bookkeeping
    included. Of what cannot be added up, as much again; then it is dropped as too slow."""

    conflation_bytes_max: int = CONFLATION_BYTES_MAX
    """Sums of updates for all slow workers: 4 bytes a parameter, and for each at most two. A slow
    worker for whom there is no room is dropped."""

    slow_seconds: float = 60.0
    """A worker for whom updates are added up is dropped when it has taken nothing for so long."""

    datagram_bytes: int = DATAGRAM_BYTES
    """Size of full datagrams to begin with."""

    datagram_bytes_max: int = DATAGRAM_BYTES_MAX
    """Largest datagram to find out whether a path carries it."""

    congestion: str = "bbr"
    """Congestion control: bbr, cubic or static."""

    link_rate: float | None = None
    """Mbit/s that the master may send in all; learned unless given."""

    processes: int = 1
    """Processes that the connections are spread over: each can use a core of its own."""

    idle_timeout_seconds: float = 30.0
    """A worker that was silent for this long is taken for dead."""

    join_timeout_seconds: float = 10.0
    """A connection that has not asked for anything by then is closed."""

    rejoin_seconds: float = 600.0
    """How long the rank of a worker that lost its connection is kept for it."""

    recovery_seconds: float = 5.0
    """How long a master that was started waits for workers of a run that it may have had before it
    was killed: for the first of them, before a new worker begins another run, and then for the
    others. A worker dials every second."""

    update_log_bytes_max: int = UPDATE_LOG_BYTES_MAX
    """The updates accepted last that are kept for workers that come back; one that has missed more
    is sent the whole replica."""

    stable_interval_seconds: float = 0.5
    """How often workers are told which updates are stable, if that has changed."""

    outlier_policy: OutlierPolicy = "quarantine"
    """What becomes of an update whose norm is beyond `outlier_norm_multiple` times the others':
    ``"quarantine"`` keeps it and all later ones of its worker aside until an operator decides,
    ``"clip"`` passes it on with that norm, ``"off"`` takes it as it is."""

    outlier_norm_multiple: float = OUTLIER_NORM_MULTIPLE
    """How far beyond the others' norm is too far; see `gradwire_server.updates.vetting`."""

    update_rate_max: float = UPDATE_RATE_MAX
    """Updates per second that are taken from one worker; more wait, and slow it down."""

    checkpoint_seconds: float = 60.0
    """How often a run that has changed is written, where there is a folder for it. What a crash of
    everybody costs is as much training."""

    drain_seconds: float = 5.0
    """How long a master that is told to end waits until what is under way has arrived. Docker gives
    it 10 s in all, and the last checkpoint is written after that."""

    checkpoint_keep: int = 3
    """Checkpoints that are kept, and of finished runs as many."""

    def __post_init__(self) -> None:
        """Refuse settings that cannot work, naming value and limit."""
        if not 1 <= self.workers_max <= RANKS_MAX:
            raise UsageError(f"workers_max={self.workers_max}; it is 1 to {RANKS_MAX}")
        if self.window_bytes < WINDOW_BYTES_MIN:
            needed = self.connections_max * WINDOW_BYTES_MIN
            raise UsageError(
                f"reassembly_bytes_max={self.reassembly_bytes_max} is too little for "
                f"workers_max={self.workers_max}; it takes {needed} (--reassembly-mib-max "
                f"{-(-needed // MIB)})"
            )
        if not 1 <= self.parameters_max <= ELEMENTS_MAX:
            raise UsageError(f"parameters_max={self.parameters_max}; it is 1 to {ELEMENTS_MAX}")
        if self.run is not None and not (
            self.run.isprintable() and 1 <= len(self.run) <= NAME_CHARACTERS_MAX
        ):
            raise UsageError(
                f"run={self.run!r}; it is a printable text of at most {NAME_CHARACTERS_MAX} "
                "characters"
            )
        if self.link_rate is not None and not 0 < self.link_rate < float("inf"):
            raise UsageError(f"link_rate={self.link_rate}; it has to be above 0, in Mbit/s")
        if not 1 <= self.processes <= PROCESSES_MAX:
            raise UsageError(f"processes={self.processes}; it is 1 to {PROCESSES_MAX}")
        if not 1 <= self.checkpoint_keep <= CHECKPOINTS_MAX:
            raise UsageError(
                f"checkpoint_keep={self.checkpoint_keep}; it is 1 to {CHECKPOINTS_MAX}"
            )
        self._check_vetting()
        self._check_standby()
        self._check_times()

    def _check_times(self) -> None:
        """Refuse what cannot be a time, a rate or a size."""
        for name in (
            "takeover_seconds",
            "update_rate_max",
            "relay_backlog_bytes_max",
            "conflation_bytes_max",
            "slow_seconds",
            "join_timeout_seconds",
            "rejoin_seconds",
            "update_log_bytes_max",
            "stable_interval_seconds",
            "checkpoint_seconds",
            "drain_seconds",
        ):
            if not 0 < getattr(self, name) < float("inf"):
                raise UsageError(f"{name}={getattr(self, name)}; it has to be above 0")
        if not 0 <= self.recovery_seconds < float("inf"):
            raise UsageError(
                f"recovery_seconds={self.recovery_seconds}; it is finite and not negative"
            )

    def _check_vetting(self) -> None:
        """Refuse settings by which no update can be judged."""
        if self.outlier_policy not in get_args(OutlierPolicy):
            raise UsageError(
                f"outlier_policy={self.outlier_policy!r}; it is 'quarantine', 'clip' or 'off'"
            )
        if not 1 <= self.outlier_norm_multiple < float("inf"):
            raise UsageError(
                f"outlier_norm_multiple={self.outlier_norm_multiple}; it is finite and at least 1"
            )

    def _check_standby(self) -> None:
        """Refuse a standby of a standby, and addresses that are none."""
        if self.standby is not None and self.standby_of is not None:
            raise UsageError(
                f"standby={self.standby!r} and standby_of={self.standby_of!r}: a master has a "
                "standby, or is one"
            )
        for name in ("standby", "standby_of"):
            address = getattr(self, name)
            if address is not None and not (
                address.isprintable() and 1 <= len(address) <= ADDRESS_CHARACTERS_MAX
            ):
                raise UsageError(f"{name}={address!r}; it is host:port")

    @property
    def relay(self) -> RelayLimits:
        """What a run may keep of updates."""
        return RelayLimits(
            self.update_log_bytes_max, self.relay_backlog_bytes_max, self.conflation_bytes_max
        )

    @property
    def link_bytes_per_second(self) -> float | None:
        """What the master may send in all, in bytes per second."""
        return None if self.link_rate is None else self.link_rate * 1e6 / 8

    @property
    def connections_max(self) -> int:
        """Connections at once."""
        return self.workers_max + CONNECTIONS_SPARE

    @property
    def window_bytes(self) -> int:
        """What one worker may have under way, so that all together keep the bound."""
        return min(self.reassembly_bytes_max // self.connections_max, WINDOW_BYTES)

    @property
    def connection(self) -> ConnectionConfig:
        """The settings of every connection."""
        return ConnectionConfig(
            datagram_bytes=self.datagram_bytes,
            datagram_bytes_max=self.datagram_bytes_max,
            congestion=self.congestion,
            window_bytes=self.window_bytes,
            idle_timeout_seconds=self.idle_timeout_seconds,
        )
