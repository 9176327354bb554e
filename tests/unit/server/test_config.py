"""Settings of a master: what cannot work is refused by name."""

import math
from typing import Any

import pytest

from gradwire_protocol import UsageError
from gradwire_protocol.limits import MIB, REASSEMBLY_BYTES_MAX, WINDOW_BYTES, WINDOW_BYTES_MIN
from gradwire_protocol.messages.kinds import WORKERS_MAX
from gradwire_protocol.messages.layout import ELEMENTS_MAX
from gradwire_server.config import MasterConfig
from support.wording import naming


@pytest.mark.parametrize("workers_max", [1, 56, 57, 200, 1_000, WORKERS_MAX])
def test_all_windows_together_stay_within_the_memory_for_messages(workers_max: int) -> None:
    config = MasterConfig(workers_max=workers_max)

    assert config.window_bytes * config.connections_max <= config.reassembly_bytes
    assert config.reassembly_bytes == REASSEMBLY_BYTES_MAX or workers_max > 56
    assert WINDOW_BYTES_MIN <= config.window_bytes <= WINDOW_BYTES


ABOVE_0 = (
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
)
TIMES = (*(name for name in ABOVE_0 if name.endswith("_seconds")), "recovery_seconds")
NEEDED = 64 * WINDOW_BYTES_MIN
REFUSED: list[tuple[str, Any, tuple[object, ...]]] = [
    # A setting, a value that it cannot have, and what says which values it can have.
    *(("workers_max", value, (1, WORKERS_MAX)) for value in (0, WORKERS_MAX + 1)),
    ("reassembly_bytes_max", MIB, ("workers_max", 56, NEEDED, "--reassembly-mib-max")),
    *(("parameters_max", value, (1, ELEMENTS_MAX)) for value in (0, ELEMENTS_MAX + 1)),
    *(("run", value, ("printable", 256)) for value in ("", "a\nb", "r" * 257)),
    *(("link_rate", value, (0, "Mbit/s")) for value in (0.0, -1.0, math.inf, math.nan)),
    *(("checkpoint_keep", value, (1, 100_000)) for value in (0, 100_001)),
    ("outliers", "drop", ("warn", "quarantine", "off")),
    *(("outlier_norm_multiple", value, (1, "finite")) for value in (0.5, math.inf, math.nan)),
    *(("standby", value, ("host:port",)) for value in ("", "b\n:1")),
    ("standby_of", "x" * 301, ("host:port",)),
    *((name, value, (0,)) for name in ABOVE_0 for value in (0, -1)),
    *(("update_rate_max", value, (0, "finite")) for value in (-1.0, math.inf, math.nan)),
    *((name, value, ("finite",)) for name in TIMES for value in (-1.0, math.inf, math.nan)),
    *(
        (name, value, ("whole",))
        for name in ABOVE_0
        if name.endswith("bytes_max")
        for value in (0.5, -1.0, math.inf, math.nan)
    ),
    *(("idle_timeout_seconds", value, (0.001, 3600)) for value in (0.0, 3601.0)),
]


@pytest.mark.parametrize(
    ("name", "value", "limits"), REFUSED, ids=[f"{n}={value!r:.20}" for n, value, _ in REFUSED]
)
def test_a_setting_that_cannot_work_is_named_with_its_limits(
    name: str, value: Any, limits: tuple[object, ...]
) -> None:
    with pytest.raises(UsageError, match=naming(name, repr(value), *limits)):
        _ = MasterConfig(**{name: value}).connection


def test_a_standby_of_a_standby_is_refused() -> None:
    with pytest.raises(UsageError, match=naming("standby", "b:1", "standby_of", "a:1")):
        MasterConfig(standby="b:1", standby_of="a:1")


def test_the_memory_that_is_asked_for_is_enough() -> None:
    assert MasterConfig(reassembly_bytes_max=NEEDED).window_bytes == WINDOW_BYTES_MIN
    with pytest.raises(UsageError, match=naming(NEEDED - 1, NEEDED)):
        MasterConfig(reassembly_bytes_max=NEEDED - 1)
