"""Damaged updates: each is refused, or valid in every respect, for a bounded price."""

from pathlib import Path

import numpy as np

from gradwire_codecs import decode
from gradwire_codecs.format.header import FAULTS
from gradwire_codecs.format.update import ELEMENTS_MAX
from support.damage import FINE, OUTCOMES, read_damaged
from support.tiers import count

CASES = count(1_000_000, quick=50_000, of="damaged updates")
SEEDS = sorted((Path(__file__).parents[3] / "golden").glob("*.bin"))


def test_damaged_updates_break_no_promise() -> None:
    outcomes = np.zeros(OUTCOMES, np.int64)
    for number, file in enumerate(SEEDS):
        body = file.read_bytes()
        elements = decode(body, ELEMENTS_MAX).stop

        found, wrong, culprit = read_damaged(body, elements, -(-CASES // len(SEEDS)), 1 + number)

        assert wrong == FINE, culprit.hex()
        outcomes += found
    assert outcomes.sum() >= CASES
    assert outcomes[0] > 0, "some damage leaves another valid update"
    missing = [fault for fault in FAULTS if not outcomes[-fault]]
    assert not missing, f"no damage led to {[FAULTS[fault] for fault in missing]}"
