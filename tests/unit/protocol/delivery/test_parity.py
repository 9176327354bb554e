"""Parity: whichever fragment of a group is missing, the others and the parity fragment give it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol.delivery.parity import (
    LOSS_MAX,
    LOSS_MIN,
    parity_of,
    parity_pays,
    restore_fragment,
)
from gradwire_protocol.delivery.shaped_message import ShapedMessage
from gradwire_protocol.wire.frames import parity_groups
from support.fragments import message_of

MESSAGES = st.builds(
    message_of,
    st.integers(1, 40 * 1160) | st.integers(1, 40).map(lambda n: n * 1160),
    fragment_bytes=st.just(1160),
    seed=st.integers(0, 2**16),
)


@given(message=MESSAGES, data=st.data())
def test_the_fragment_of_a_group_that_is_missing_is_made_up(
    message: ShapedMessage, data: st.DataObject
) -> None:
    missing = data.draw(st.integers(0, message.count - 1))
    group = missing % parity_groups(message.count)
    parity = np.frombuffer(parity_of(message, group).payload, np.uint8)
    payload = message.payload_of(missing).copy()
    message.rows[missing] ^= 0xFF

    assert (restore_fragment(message, group, parity, missing) == payload).all()


@given(message=MESSAGES)
def test_a_parity_fragment_says_whose_it_is_and_has_the_size_of_a_full_one(
    message: ShapedMessage,
) -> None:
    message = message.reshape(1152, new_shape=True)

    for group in range(parity_groups(message.count)):
        data = parity_of(message, group)
        assert (data.stream, data.number, data.kind, data.total, data.fragment_bytes) == (
            message.stream, message.number, message.kind, message.total, 1152
        )  # fmt: skip
        assert (data.index, data.shape, data.parity) == (group, 1, True)
        assert len(data.payload) == min(1152, message.total)


@pytest.mark.parametrize(
    ("loss", "fragments", "worth_it"),
    [
        pytest.param(0.0, 1000, False, id="nothing is lost"),
        pytest.param(LOSS_MIN / 2, 1000, False, id="hardly anything is lost"),
        pytest.param(0.01, 3, False, id="a large part of so few fragments"),
        pytest.param(LOSS_MIN, 4, False, id="hardly ever one of so few"),
        pytest.param(LOSS_MIN, 7, True, id="now and then one of so many"),
        pytest.param(0.01, 4, True, id="one in a hundred"),
        pytest.param(LOSS_MAX, 100, True, id="one in twenty"),
        pytest.param(2 * LOSS_MAX, 100, False, id="more than one of every group"),
    ],
)
def test_parity_pays_where_a_fragment_is_lost_now_and_then(
    loss: float, fragments: int, worth_it: bool
) -> None:
    assert parity_pays(loss, fragments) == worth_it
