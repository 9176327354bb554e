"""Bytes that are decoded on the device are the changes that the CPU reads in them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire_codecs import MalformedUpdateError, Update
from gradwire_codecs.cuda.decoding import changes_of
from gradwire_codecs.cuda.streams import SideStream
from gradwire_codecs.format.header import DENSE, EVERY, LISTED, PLAIN, START
from gradwire_codecs.format.reading import read_encoded
from gradwire_codecs.format.update import pack_update
from support.hits import update_of
from support.tiers import examples

ELEMENTS_MAX = 2**31 - 1


def on_device(encoded: bytes, device: torch.device) -> dict[int, int]:
    """Return by how much each element changes."""
    stream = SideStream(device)
    hits = read_encoded(encoded, ELEMENTS_MAX)
    with stream.turn():
        change, index = changes_of(hits, stream)
    places = np.flatnonzero(change.cpu()) + hits.header[START] if index is None else index.tolist()
    changes = change[change != 0] if index is None else change
    return dict(zip(map(int, places), changes.tolist(), strict=True))


def changes_in(update: Update) -> dict[int, int]:
    return dict(zip(update.index.tolist(), update.change.tolist(), strict=True))


@settings(max_examples=examples(6))
@given(
    seed=st.integers(0, 2**32),
    start=st.sampled_from([0, 7, 2**31 - 9000]),
    length=st.sampled_from([1, 64, 1000, 8000]),
    density=st.sampled_from([0.0, 0.002, 0.05, 0.5, 1.0]),
    larger=st.sampled_from([0.0, 0.02, 0.5, 1.0]),
    magnitude_max=st.sampled_from([2, 3, 127, 2**31 - 1]),
)
def test_all_formats_are_read_alike(
    device: torch.device,
    seed: int,
    start: int,
    length: int,
    density: float,
    larger: float,
    magnitude_max: int,
) -> None:
    update = update_of(seed, start, length, density, larger, magnitude_max)

    assert on_device(pack_update(update), device) == changes_in(update)


@pytest.mark.parametrize(
    ("density", "larger", "magnitude_max", "form"),
    [(0.02, 0.0, 2, PLAIN), (0.05, 0.05, 9, LISTED), (0.05, 1.0, 900, EVERY), (0.9, 0.5, 3, DENSE)],
)
def test_each_format_is_read(
    device: torch.device, density: float, larger: float, magnitude_max: int, form: int
) -> None:
    update = update_of(1, 3, 6000, density, larger, magnitude_max)
    encoded = pack_update(update)

    assert encoded[0] == form
    assert on_device(encoded, device) == changes_in(update)
    with pytest.raises(MalformedUpdateError):
        on_device(encoded[:-1], device)


def test_gaps_in_one_block_may_be_of_all_sizes(device: torch.device) -> None:
    """A gap of two thousand million elements after one of none: more zeros than a word has."""
    index = np.array([0, 1, 2, 3, 2**31 - 2], np.uint32)
    update = Update(0, ELEMENTS_MAX, 1, index, np.ones(5, np.int32))
    near = np.array([0, 1, 2, 3, 400], np.uint32)
    nearby = Update(0, 500, 1, near, np.ones(5, np.int32))

    assert on_device(pack_update(update), device) == changes_in(update)
    assert on_device(pack_update(nearby), device) == changes_in(nearby)
