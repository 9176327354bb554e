"""Settings that cannot work are refused at once, with value and limit."""

import pytest

from gradwire_protocol import ConnectionConfig, UsageError


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        ("datagram_bytes", 1196, "datagram_bytes=1196; it is a multiple of 4 from 1200 to 8900"),
        ("datagram_bytes", 8904, "datagram_bytes=8904; it is a multiple of 4 from 1200 to 8900"),
        ("datagram_bytes", 1402, "datagram_bytes=1402; it is a multiple of 4 from 1200 to 8900"),
        ("datagram_bytes_max", 1196, "datagram_bytes_max=1196; it is a multiple of 4 from 1200"),
        ("datagram_bytes_max", 8904, "datagram_bytes_max=8904; it is a multiple of 4 from 1200"),
        ("datagram_bytes_max", 8899, "datagram_bytes_max=8899; it is a multiple of 4 from 1200"),
        ("congestion", "reno", "congestion='reno'; it is one of bbr, cubic, static"),
        ("congestion", "", "congestion=''; it is one of bbr, cubic, static"),
        ("window_bytes", 4723199, "window_bytes=4723199; it is 4723200 to 1073741824"),
        ("window_bytes", 2**30 + 1, "window_bytes=1073741825; it is 4723200 to 1073741824"),
        ("idle_timeout_seconds", 0.0, "idle_timeout_seconds=0.0; it is 0.001 to 3600"),
        ("idle_timeout_seconds", 3601, "idle_timeout_seconds=3601; it is 0.001 to 3600"),
        ("idle_timeout_seconds", float("nan"), "idle_timeout_seconds=nan"),
        ("keepalive_seconds", 0, "keepalive_seconds=0; it has to be above 0"),
        ("keepalive_seconds", float("inf"), "keepalive_seconds=inf"),
        ("keepalive_seconds", float("nan"), "keepalive_seconds=nan"),
        ("connect_timeout_seconds", -1, "connect_timeout_seconds=-1; it has to be above 0"),
        ("connect_timeout_seconds", float("inf"), "connect_timeout_seconds=inf"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(setting: str, value: float | str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        ConnectionConfig(**{setting: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"datagram_bytes": 1200},
        {"datagram_bytes": 8900},
        {"datagram_bytes_max": 1200},
        {"datagram_bytes_max": 8900},
        {"congestion": "bbr"},
        {"congestion": "cubic"},
        {"congestion": "static"},
        {"window_bytes": 4723200},
        {"window_bytes": 2**30},
        {"idle_timeout_seconds": 0.001},
        {"idle_timeout_seconds": 3600},
        {"keepalive_seconds": 1e-6},
        {"connect_timeout_seconds": 1e6},
    ],
)
def test_a_setting_at_its_limit_is_taken(settings: dict[str, int | str]) -> None:
    config = ConnectionConfig(**settings)  # type: ignore[arg-type]

    assert {name: getattr(config, name) for name in settings} == settings


def test_over_tcp_it_is_left_to_tcp_what_tcp_does() -> None:
    config = ConnectionConfig(window_bytes=2**25, datagram_bytes=1200, congestion="cubic")

    assert config.over_tcp == ConnectionConfig(
        window_bytes=2**25, datagram_bytes=8900, congestion="static", lossless=True
    )
