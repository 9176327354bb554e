"""How a process has ended, in words."""

import signal

import pytest

from gradwire.cli.launch.ends import how


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (1, "ended with status 1"),
        (3, "ended with status 3"),
        (128, "ended with status 128"),
        (128 + signal.SIGTERM, "was killed by SIGTERM"),
        (128 + signal.SIGSEGV, "was killed by SIGSEGV"),
        (255, "ended with status 255"),
    ],
)
def test_a_status_is_a_number_or_the_signal_that_it_stands_for(status: int, said: str) -> None:
    assert how(status) == said


def test_what_the_system_kills_for_memory_says_where_to_look() -> None:
    assert how(128 + signal.SIGKILL).startswith("was killed by SIGKILL (")
    assert "dmesg" in how(128 + signal.SIGKILL)
