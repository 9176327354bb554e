"""Hits that are encoded on the device are the bytes that the CPU makes of them."""

import numpy as np
import torch
from hypothesis import given, settings

from gradwire_codecs import Update
from gradwire_codecs.cuda.encoding import encode_hits
from gradwire_codecs.cuda.streams import SideStream
from gradwire_codecs.format.update import split_update
from support.hits import FORMS, HITS, update_of
from support.tiers import examples
from support.updates import range_of


def on_device(update: Update, device: torch.device, bytes_max: int) -> list[bytes]:
    stream = SideStream(device)
    index = torch.tensor(update.index.view(np.int32), device=device)
    count = torch.tensor(update.count, device=device)
    with stream.turn():
        return encode_hits(stream, *range_of(update), index, count, bytes_max)


@settings(max_examples=examples(15))
@given(update=HITS)
def test_all_formats_are_the_same_bytes(device: torch.device, update: Update) -> None:
    assert on_device(update, device, 2**22) == split_update(update, 2**22)


@FORMS
def test_each_format_is_chosen(device: torch.device, update: Update, form: int) -> None:
    [encoded] = on_device(update, device, 2**22)

    assert encoded[0] == form
    assert [encoded] == split_update(update, 2**22)


def test_what_is_too_large_is_split_alike(device: torch.device) -> None:
    update = update_of(2, 5, 6000, 0.1, 0.1, 5)

    parts = on_device(update, device, 200)

    assert len(parts) > 3
    assert parts == split_update(update, 200)


def test_gaps_in_one_block_may_be_of_all_sizes(device: torch.device) -> None:
    """A gap of two thousand million elements after one of none: the longest code there is."""
    index = np.array([0, 1, 2, 3, 2**31 - 2], np.uint32)
    update = Update(0, 2**31 - 1, 1, index, np.ones(5, np.int32))

    assert on_device(update, device, 2**30) == split_update(update, 2**30)
