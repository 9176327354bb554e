"""Bytes that are decoded on the device are the changes that the CPU reads in them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from gradwire_codecs import MalformedUpdateError, Update
from gradwire_codecs.cuda.decoding import changes_of
from gradwire_codecs.cuda.streams import SideStream
from gradwire_codecs.format.header import START
from gradwire_codecs.format.reading import read_encoded
from gradwire_codecs.format.update import pack_update
from support.hits import FORMS, HITS
from support.tiers import examples
from support.updates import changes

ELEMENTS_MAX = 2**31 - 1


def on_device(encoded: bytes, device: torch.device) -> dict[int, int]:
    """Return by how much each element changes."""
    stream = SideStream(device)
    hits = read_encoded(encoded, ELEMENTS_MAX)
    with stream.turn():
        change, index = changes_of(hits, stream)
    places = np.flatnonzero(change.cpu()) + hits.header[START] if index is None else index.tolist()
    values = change[change != 0] if index is None else change
    return dict(zip(map(int, places), values.tolist(), strict=True))


@settings(max_examples=examples(6))
@given(update=HITS)
def test_all_formats_are_read_alike(device: torch.device, update: Update) -> None:
    assert on_device(pack_update(update), device) == changes(update)


@FORMS
def test_each_format_is_read(device: torch.device, update: Update, form: int) -> None:
    encoded = pack_update(update)

    assert encoded[0] == form
    assert on_device(encoded, device) == changes(update)
    with pytest.raises(MalformedUpdateError):
        on_device(encoded[:-1], device)


def test_gaps_in_one_block_may_be_of_all_sizes(device: torch.device) -> None:
    """A gap of two thousand million elements after one of none: more zeros than a word has."""
    index = np.array([0, 1, 2, 3, 2**31 - 2], np.uint32)
    update = Update(0, ELEMENTS_MAX, 1, index, np.ones(5, np.int32))
    near = np.array([0, 1, 2, 3, 400], np.uint32)
    nearby = Update(0, 500, 1, near, np.ones(5, np.int32))

    assert on_device(pack_update(update), device) == changes(update)
    assert on_device(pack_update(nearby), device) == changes(nearby)
