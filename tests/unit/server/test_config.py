"""Settings of a master: what cannot work is refused by name."""

from typing import Any

import pytest

from gradwire_protocol import UsageError
from gradwire_protocol.limits import MIB, REASSEMBLY_BYTES_MAX, WINDOW_BYTES, WINDOW_BYTES_MIN
from gradwire_protocol.messages import RANKS_MAX
from gradwire_server.config import CONNECTIONS_SPARE, MasterConfig


def test_the_defaults_work_and_give_every_worker_a_whole_window() -> None:
    config = MasterConfig()

    assert config.window_bytes == WINDOW_BYTES
    assert config.connection.window_bytes == WINDOW_BYTES
    assert config.connections_max == config.workers_max + CONNECTIONS_SPARE


@pytest.mark.parametrize("workers_max", [1, 56, 57, 200])
def test_all_windows_together_stay_within_the_memory_for_messages(workers_max: int) -> None:
    config = MasterConfig(workers_max=workers_max)

    assert config.window_bytes * config.connections_max <= REASSEMBLY_BYTES_MAX
    assert WINDOW_BYTES_MIN <= config.window_bytes <= WINDOW_BYTES


def test_connections_get_the_settings_of_the_master() -> None:
    config = MasterConfig(datagram_bytes=1200, idle_timeout_seconds=7.0)

    assert config.connection.datagram_bytes == 1200
    assert config.connection.idle_timeout_seconds == 7.0


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"workers_max": 0}, f"workers_max=0; it is 1 to {RANKS_MAX}"),
        ({"workers_max": RANKS_MAX + 1}, f"workers_max={RANKS_MAX + 1}; it is 1 to {RANKS_MAX}"),
        (
            {"reassembly_bytes_max": MIB},
            f"reassembly_bytes_max={MIB} is too little for workers_max=56; it takes "
            f"{64 * WINDOW_BYTES_MIN}",
        ),
        ({"relay_backlog_bytes_max": 0}, "relay_backlog_bytes_max=0; it has to be above 0"),
        ({"conflation_bytes_max": 0}, "conflation_bytes_max=0; it has to be above 0"),
        ({"slow_seconds": 0}, "slow_seconds=0; it has to be above 0"),
        ({"join_timeout_seconds": 0.0}, "join_timeout_seconds=0.0; it has to be above 0"),
        ({"join_timeout_seconds": float("nan")}, "join_timeout_seconds=nan; "),
        ({"join_timeout_seconds": float("inf")}, "join_timeout_seconds=inf; "),
        ({"stable_interval_seconds": -1.0}, "stable_interval_seconds=-1.0; it has to be above 0"),
        ({"processes": 0}, "processes=0; it is 1 to 64"),
        ({"outlier_policy": "drop"}, "outlier_policy='drop'; it is 'quarantine', 'clip' or 'off'"),
        ({"outlier_norm_multiple": 0.5}, "outlier_norm_multiple=0.5; it is finite and at least 1"),
        ({"outlier_norm_multiple": float("nan")}, "outlier_norm_multiple=nan; "),
        ({"update_rate_max": 0.0}, "update_rate_max=0.0; it has to be above 0"),
        ({"processes": 65}, "processes=65; it is 1 to 64"),
        ({"standby": "b:1", "standby_of": "a:1"}, "standby='b:1' and standby_of='a:1': a master"),
        ({"standby": ""}, "standby=''; it is host:port"),
        ({"standby_of": "x" * 301}, f"standby_of='{'x' * 301}'; it is host:port"),
        ({"takeover_seconds": 0.0}, "takeover_seconds=0.0; it has to be above 0"),
    ],
)
def test_a_setting_that_cannot_work_is_named(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as refused:
        MasterConfig(**settings)

    assert str(refused.value).startswith(says)


def test_the_memory_that_is_asked_for_is_enough() -> None:
    needed = 64 * WINDOW_BYTES_MIN

    assert MasterConfig(reassembly_bytes_max=needed).window_bytes == WINDOW_BYTES_MIN
    with pytest.raises(UsageError, match=f"it takes {needed} "):
        MasterConfig(reassembly_bytes_max=needed - 1)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"datagram_bytes": 1199}, "datagram_bytes=1199; it is a multiple of 4 from 1200 to 8900"),
        ({"datagram_bytes": 8901}, "datagram_bytes=8901; it is a multiple of 4 from 1200 to 8900"),
        ({"idle_timeout_seconds": 0.0}, "idle_timeout_seconds=0.0; it is 0.001 to 3600"),
        ({"idle_timeout_seconds": 3601.0}, "idle_timeout_seconds=3601.0; it is 0.001 to 3600"),
    ],
)
def test_a_setting_that_no_connection_takes_is_named(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=f"^{says}$"):
        _ = MasterConfig(**settings).connection
