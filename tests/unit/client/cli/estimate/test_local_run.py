"""What is made of rounds; that real ones can be measured, `tests/integration` shows."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.cli.estimate.kernels import KernelCosts
from gradwire.cli.estimate.local_run import (
    LARGE_HITS,
    SMALL_HITS,
    Round,
    costs_from,
    without_settings,
)

KERNELS = KernelCosts(2.5e-10, 1.5e-8, 1.5e-8, 1e-8)
SECONDS = st.floats(1e-6, 1e-2)


def round_of(
    sessions: int, size: float, update: float, delivery: float, byte: float, handled: float
) -> Round:
    """Return what a round takes whose parts take so much."""
    deliveries = sessions * (sessions - 1)
    both = sessions + deliveries
    hits = SMALL_HITS if size < 100 else LARGE_HITS
    decoding = sessions * (hits - SMALL_HITS) * KERNELS.master_seconds_per_hit
    return Round(
        sessions=sessions,
        step=1e-3,
        apply=3e-5,
        network=both * (handled + byte * (size - 50)),
        master=sessions * update + deliveries * delivery + both * byte * (size - 50) + decoding,
        update_bytes=size,
    )


@given(update=SECONDS, ratio=st.floats(0.5, 2.0), handled=SECONDS, byte=st.floats(1e-9, 1e-7))
def test_what_a_round_is_made_of_is_found_again(
    update: float, ratio: float, handled: float, byte: float
) -> None:
    delivery = update * ratio
    few, small, large = (
        round_of(sessions, size, update, delivery, byte, handled)
        for sessions, size in ((2, 50.0), (4, 50.0), (4, 30_000.0))
    )

    found = costs_from(few, small, large, KERNELS, scan_seconds=4e-4)

    assert found.master_update_seconds == pytest.approx(update, rel=1e-6, abs=1e-9)
    assert found.master_delivery_seconds == pytest.approx(delivery, rel=1e-6, abs=1e-9)
    assert found.master_seconds_per_byte == pytest.approx(byte, rel=1e-3)
    assert found.network_seconds == pytest.approx(handled)
    assert found.network_seconds_per_byte == pytest.approx(byte, rel=1e-3)
    assert found.step_seconds == pytest.approx(6e-4)


def test_figures_that_noise_has_turned_round_stay_above_nothing() -> None:
    few, small, large = (Round(n, 1e-4, 1e-5, 1e-3, master, size) for n, master, size in (
        (2, 9e-3, 50.0), (4, 2e-3, 50.0), (4, 1e-3, 30_000.0)
    ))  # fmt: skip

    found = costs_from(few, small, large, KERNELS, scan_seconds=1.0)

    assert found.step_seconds == 0
    assert found.master_delivery_seconds > 0
    assert found.master_seconds_per_byte == 0
    assert found.master_update_seconds > 0


def test_settings_are_hidden_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_TARGET_DENSITY", "0.5")
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("HOME_OF_GRADWIRE_", "x")
    before = dict(os.environ)

    with without_settings():
        inside = dict(os.environ)

    assert before.keys() - inside.keys() == {"GRADWIRE_TARGET_DENSITY", "RANK"}
    assert dict(os.environ) == before
