"""Clipping: what is left and what its origin is told add up, and keep the limit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gradwire_codecs import MalformedUpdateError, Update, decode
from gradwire_codecs.format.header import INT32_MAX
from gradwire_codecs.format.update import pack_update
from gradwire_protocol.messages.updates import UPDATE_BYTES_MAX
from gradwire_server.updates.clipping import clip
from gradwire_server.updates.vetting import norm_of

ELEMENTS = 60
SHARES = st.floats(1e-12, 1.0, exclude_min=True, exclude_max=True)


@st.composite
def updates(draw: st.DrawFn) -> Update:
    """Draw any update that can be, but for the one that changes a single quantum."""
    multiple = draw(st.integers(1, 2**24))
    hits = draw(st.sets(st.integers(0, ELEMENTS - 1), min_size=1))
    index = np.array(sorted(hits), np.uint32)
    magnitudes = st.integers(1, INT32_MAX // multiple)
    counts = [draw(magnitudes) * draw(st.sampled_from([-1, 1])) for _ in index]
    if multiple == 1 and counts in ([1], [-1]):
        counts = [2]
    return Update(0, ELEMENTS, multiple, index, np.array(counts, np.int32))


def quanta(body: bytes) -> NDArray[np.int64]:
    """Return what an encoded update changes, per element."""
    update, values = decode(body, ELEMENTS), np.zeros(ELEMENTS, np.int64)
    values[update.index] = update.change
    return values


@given(update=updates(), share=SHARES)
def test_what_was_sent_and_the_correction_add_up_to_what_is_left(
    update: Update, share: float
) -> None:
    clipped = clip(update, share)

    sent = quanta(pack_update(update))
    left = quanta(clipped.body)
    assert (sent + quanta(clipped.correction) == left).all()
    assert quanta(pack_update(clipped.update)).tolist() == left.tolist()


@given(update=updates(), share=SHARES)
def test_what_is_left_keeps_the_limit_and_points_the_same_way(update: Update, share: float) -> None:
    clipped = clip(update, share)

    sent, left = quanta(pack_update(update)), quanta(clipped.body)
    assert norm_of(clipped.update) <= max(norm_of(update) * share * (1 + 1e-6), 1.0)
    assert ((np.sign(left) == np.sign(sent)) | (left == 0)).all()
    assert len(clipped.body) <= len(pack_update(update))


def test_an_update_of_which_nothing_would_be_left_changes_one_quantum() -> None:
    update = Update(0, 3, 1, np.array([0, 2], np.uint32), np.array([1, -3], np.int32))

    clipped = clip(update, 0.01)

    assert quanta(clipped.body)[:3].tolist() == [0, 0, -1]


def test_a_correction_that_fits_no_message_is_refused() -> None:
    """Counts of one bit that stand for 2^24 quanta each, clipped to almost nothing."""
    elements = 8 * UPDATE_BYTES_MAX // 20
    index = np.arange(elements, dtype=np.uint32)
    update = Update(0, elements, 2**24, index, np.ones(elements, np.int32))

    with pytest.raises(MalformedUpdateError, match="bytes; the limit is"):
        clip(update, 2.0**-25)
