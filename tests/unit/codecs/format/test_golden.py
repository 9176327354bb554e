"""Golden files: the bytes of an encoded update do not change by accident.

``python tests/golden`` writes them anew when they change on purpose.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from gradwire_codecs import Update, decode
from gradwire_codecs.format.header import BYTES, DENSE, EVERY, LISTED, PLAIN
from gradwire_codecs.format.update import ELEMENTS_MAX, pack_update
from support.reference_decoder import reference_decode
from support.updates import changes, range_of

FOLDER = Path(__file__).parents[3] / "golden"
NAMES = sorted(file.stem for file in FOLDER.glob("*.bin"))


def content(name: str) -> Update:
    fields = json.loads((FOLDER / f"{name}.json").read_text("ascii"))
    return Update(
        fields["start"],
        fields["stop"],
        fields["multiple"],
        np.array(fields["index"], np.uint32),
        np.array(fields["count"], np.int32),
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_encoder_writes_these_bytes(name: str) -> None:
    assert pack_update(content(name)) == (FOLDER / f"{name}.bin").read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_both_decoders_read_this_content(name: str) -> None:
    body, expected = (FOLDER / f"{name}.bin").read_bytes(), content(name)

    decoded = decode(body, ELEMENTS_MAX)

    assert range_of(decoded) == range_of(expected)
    assert decoded.index.tolist() == expected.index.tolist()
    assert decoded.count.tolist() == expected.count.tolist()
    assert reference_decode(body) == changes(expected)


def test_every_format_is_covered() -> None:
    assert {(FOLDER / f"{name}.bin").read_bytes()[0] for name in NAMES} == {
        PLAIN,
        LISTED,
        EVERY,
        DENSE,
        BYTES,
    }
