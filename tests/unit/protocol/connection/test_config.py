"""Settings that cannot work are refused at once, with value and limit."""

import math
from typing import Any

import pytest

from gradwire_protocol import ConnectionConfig, UsageError
from support.wording import naming

REFUSED: list[tuple[str, Any, tuple[object, ...]]] = [
    # A setting, a value that it cannot have, and what says which values it can have.
    *(("datagram_bytes", value, (4, 1200, 8900)) for value in (1196, 8904, 1402)),
    *(("datagram_bytes_max", value, (4, 1200, 8900)) for value in (1196, 8904, 8899)),
    *(("window_bytes", value, (4723200, 2**30)) for value in (4723199, 2**30 + 1)),
    *(("idle_timeout_seconds", value, (0.001, 3600)) for value in (0.0, 3601, math.nan)),
    *(("keepalive_seconds", value, (0, "finite")) for value in (0, math.inf, math.nan)),
    *(("connect_timeout_seconds", value, (0, "finite")) for value in (-1, math.inf)),
]


@pytest.mark.parametrize(
    ("name", "value", "limits"), REFUSED, ids=[f"{n}={value!r}" for n, value, _ in REFUSED]
)
def test_a_setting_that_cannot_work_is_named_with_its_limits(
    name: str, value: Any, limits: tuple[object, ...]
) -> None:
    with pytest.raises(UsageError, match=naming(name, repr(value), *limits)):
        ConnectionConfig(**{name: value})


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"datagram_bytes": 1200},
        {"datagram_bytes": 8900},
        {"datagram_bytes_max": 1200},
        {"datagram_bytes_max": 8900},
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
    config = ConnectionConfig(window_bytes=2**25, datagram_bytes=1200)

    assert config.over_tcp == ConnectionConfig(
        window_bytes=2**25, datagram_bytes=8900, lossless=True
    )
