"""Golden files: the bytes of a dense contribution do not change by accident.

``python tests/golden/contributions`` writes them again when they change on purpose. What damage
does to such bytes is tested with those of every format, in ``format/test_malformed_update.py``.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradwire_codecs import Replica, SharedFeedback, decode
from gradwire_codecs.feedback.contributions import encode_dense
from gradwire_codecs.format.header import BYTES, DENSE, EVERY, LISTED, PLAIN
from support.reference_decoder import reference_decode

FOLDER = Path(__file__).parents[3] / "golden" / "contributions"
CASES: dict[str, Any] = {
    file.stem: json.loads(file.read_text("ascii")) for file in sorted(FOLDER.glob("*.json"))
}


@pytest.mark.parametrize("name", CASES)
def test_a_worker_contributes_these_bytes_to_each_round(name: str) -> None:
    case = CASES[name]
    changes = np.array(case["changes"], np.float32)
    ranges = [(start, stop) for start, stop in case["ranges"]]
    elements = changes.shape[1]
    feedback = SharedFeedback(np.zeros(elements, np.float32), Replica.zeros(elements))

    contributed = []
    for change in changes:
        feedback.add_change(change)
        bodies = encode_dense(feedback, ranges, case["magnitude_max"], bytes_max=case["bytes_max"])
        contributed.append([body.hex() for body in bodies])

    assert contributed == case["bodies"]


@pytest.mark.parametrize("name", CASES)
def test_both_decoders_read_the_same_and_within_the_bits(name: str) -> None:
    case = CASES[name]
    elements = case["ranges"][-1][1]
    for text in (text for bodies in case["bodies"] for text in bodies):
        update = decode(bytes.fromhex(text), elements)

        changes = dict(zip(update.index.tolist(), update.change.tolist(), strict=True))
        assert reference_decode(bytes.fromhex(text)) == changes
        assert np.abs(update.count).max() <= case["magnitude_max"]


def test_there_is_a_contribution_in_every_format() -> None:
    every = [text for case in CASES.values() for bodies in case["bodies"] for text in bodies]

    assert {bytes.fromhex(text)[0] for text in every} == {PLAIN, LISTED, EVERY, DENSE, BYTES}
