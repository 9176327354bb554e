"""Expected sizes are those of the encoder."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.cli.estimate.sizes import (
    ACK_BYTES,
    ack_link_bytes,
    bits_per_hit,
    link_bytes,
    packets_of,
    sum_bytes,
    update_bytes,
)
from gradwire_codecs import Update
from gradwire_codecs.format.update import pack_update


def encoded_size(elements: int, density: float, *, counts: int = 1) -> int:
    random = np.random.default_rng(0)
    index = np.flatnonzero(random.random(elements) < density).astype(np.uint32)
    count = random.choice([-counts, counts], index.size).astype(np.int32)
    return len(pack_update(Update(0, elements, 1, index, count)))


@pytest.mark.parametrize("density", [0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.6])
def test_an_update_is_as_large_as_the_encoder_makes_it(density: float) -> None:
    elements = 1_000_000

    assert update_bytes(elements, density) == pytest.approx(
        encoded_size(elements, density), rel=0.02
    )


@given(low=st.floats(1e-7, 0.999), factor=st.floats(1.0, 10.0))
def test_a_denser_update_is_larger_and_takes_fewer_bits_per_hit(low: float, factor: float) -> None:
    high = min(low * factor, 1.0)

    assert update_bytes(10**6, high) >= update_bytes(10**6, low) * (1 - 1e-9)
    assert bits_per_hit(high) <= bits_per_hit(low) + 1e-9


@given(density=st.floats(1e-6, 1.0), updates=st.floats(0.1, 1e6), more=st.floats(1.0, 100.0))
def test_a_sum_grows_with_what_is_in_it_and_has_an_end(
    density: float, updates: float, more: float
) -> None:
    parameters = 10**6

    assert sum_bytes(parameters, density, more * updates) >= 0.999 * sum_bytes(
        parameters, density, updates
    )
    assert sum_bytes(parameters, density, updates) < 3 * parameters


@given(size=st.integers(1, 10**7))
def test_a_link_carries_a_header_for_each_datagram(size: int) -> None:
    assert packets_of(size) == -(-size // 1348)
    assert link_bytes(size) == size + 94 * packets_of(size)
    assert ack_link_bytes(size) >= ACK_BYTES
