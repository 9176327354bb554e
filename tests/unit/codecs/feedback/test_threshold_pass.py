"""The threshold pass finds what a plain statement of it finds, in memory it has from the start."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire_codecs import (
    CodecError,
    LocalFeedback,
    NonFiniteError,
    OutOfRangeError,
    Replica,
    decode,
)
from gradwire_codecs.arrays import Float32Array, Int32Array, UInt32Array
from gradwire_codecs.feedback.host_feedback import HostFeedback
from gradwire_codecs.feedback.threshold_pass import ThresholdPass
from gradwire_codecs.kernels.lattice import BLOCK
from gradwire_codecs.kernels.threshold import CHUNK, LANES
from support.feedbacks import KINDS
from support.memory import peak_of
from support.tiers import examples

QUANTUM = np.float32(2.0**-24)
MANY = 16 * CHUNK
"""Elements of many chunks."""

NOTHING = np.empty(0, np.float32)


def found(
    looking: ThresholdPass, start: int, stop: int, multiple: int, magnitude_max: int
) -> tuple[UInt32Array, Int32Array]:
    hits = [
        [taken.copy() for taken in looking.hits_in(low, high)]
        for low, high in looking.scan(start, stop, multiple, magnitude_max)
    ]
    if not hits:
        return np.empty(0, np.uint32), np.empty(0, np.int32)
    index, count = zip(*hits, strict=True)
    return np.concatenate(index), np.concatenate(count)


def expected(
    d: Float32Array, start: int, stop: int, multiple: int, magnitude_max: int
) -> tuple[UInt32Array, Int32Array]:
    """Say in numpy what the pass finds in a range of a residual."""
    tau = multiple * np.float64(QUANTUM)
    inside = d[start:stop].astype(np.float64)
    index = np.flatnonzero(np.abs(inside) >= tau)
    count = np.trunc(inside[index] / tau).clip(-magnitude_max, magnitude_max)
    return (index + start).astype(np.uint32), count.astype(np.int32)


def special(random: np.random.Generator, tau: np.float32, elements: int) -> Float32Array:
    """Return a residual of what is hard to get right about a threshold, and of the usual."""
    below = np.nextafter(tau, np.float32(0))
    above = np.nextafter(tau, np.float32(1))
    values = np.array([0.0, 1e-45, 1e-39, below, tau, above, 2 * tau, 2 * below, 100 * tau])
    usual = random.normal(0, tau, elements)
    hard = random.choice(np.concatenate([values, -values]), elements)
    return np.where(random.random(elements) < 0.5, usual, hard).astype(np.float32)


MULTIPLES = st.sampled_from([1, 3, 1000, 2**20, 2**24])


@st.composite
def ranges_of(draw: st.DrawFn, elements: int) -> tuple[int, int]:
    """Draw where a part of a vector starts and stops."""
    start = draw(st.integers(0, elements - 1))
    return start, draw(st.integers(start + 1, elements))


@given(
    data=st.data(),
    elements=st.one_of(
        st.integers(1, 3 * LANES), st.integers(BLOCK - 2, BLOCK + 2), st.integers(1, 4 * BLOCK)
    ),
    multiple=MULTIPLES,
    seed=st.integers(0, 2**32),
    apart=st.booleans(),
    offset=st.integers(0, 16),
    magnitude_max=st.sampled_from([1, 2, 127]),
)
def test_it_finds_what_a_plain_statement_finds(
    data: st.DataObject,
    elements: int,
    multiple: int,
    seed: int,
    apart: bool,
    offset: int,
    magnitude_max: int,
) -> None:
    """For any range of any number of elements, anywhere in memory, with what is hard in them."""
    random = np.random.default_rng(seed)
    start, stop = data.draw(ranges_of(elements))
    memory = np.empty(elements + offset, np.float32)
    parameters = memory[offset:]
    values = random.integers(-(2**20), 2**20, elements).astype(np.int32)
    parameters[:] = np.float32(QUANTUM) * values
    change = special(random, np.float32(multiple) * QUANTUM, elements)
    waiting = change if apart else NOTHING
    if not apart:
        parameters += change
    d = parameters - values.astype(np.float32) * QUANTUM
    if apart:
        d += waiting
    looking = ThresholdPass(parameters, waiting, values, QUANTUM)

    index, count = found(looking, start, stop, multiple, magnitude_max)

    expected_index, expected_count = expected(d, start, stop, multiple, magnitude_max)
    assert index.tolist() == expected_index.tolist()
    assert count.tolist() == expected_count.tolist()


@pytest.mark.parametrize("apart", [False, True])
def test_a_denormal_residual_is_a_residual(apart: bool) -> None:
    """Nothing is flushed to zero: with the smallest quantum, thresholds are near denormals."""
    tiny = np.array([1e-45, -1e-45, 1e-39, 0.0, -0.0, 2.0**-149] * 30, np.float32)
    quantum = np.float32(2.0**-149)
    zeros = np.zeros(tiny.size, np.float32)
    parameters, waiting = (zeros, tiny) if apart else (tiny, NOTHING)
    looking = ThresholdPass(parameters, waiting, np.zeros(tiny.size, np.int32), quantum)

    index, count = found(looking, 0, tiny.size, 1, 2**31 - 1)

    assert index.tolist() == np.flatnonzero(tiny).tolist()
    assert count.tolist() == (tiny[tiny != 0].astype(np.float64) / 2.0**-149).tolist()


@KINDS
@settings(max_examples=examples(12))
@given(
    seed=st.integers(0, 2**32),
    elements=st.integers(MANY, MANY + 3 * CHUNK),
    density=st.sampled_from([0.0, 1e-4, 0.01, 0.04, 0.5, 1.0]),
    dense_until=st.sampled_from([0.1, 1.0]),
    start=st.integers(0, 2 * LANES),
)
def test_what_is_encoded_makes_the_replica_whether_or_not_there_is_room_for_all_hits(
    kind: type[HostFeedback],
    seed: int,
    elements: int,
    density: float,
    dense_until: float,
    start: int,
) -> None:
    random = np.random.default_rng(seed)
    change = np.zeros(elements, np.float32)
    end = int(elements * dense_until)
    change[:end] = random.choice([-3e-3, 2e-3], end) * (random.random(end) < density)
    feedback = kind(change.copy(), Replica.zeros(elements))
    bodies = feedback.encode(15_000, bytes_max=2**20, start=start)
    feedback.parameters += change
    bodies += feedback.encode(15_000, bytes_max=2**20, start=start)

    other = Replica.zeros(elements)
    for body in bodies:
        other.apply(decode(body, elements))
    assert other.digest() == feedback.replica.digest()


@KINDS
@pytest.mark.parametrize(
    ("value", "error"),
    [
        (np.nan, NonFiniteError),
        (np.inf, NonFiniteError),
        (-np.inf, NonFiniteError),
        (1e9, OutOfRangeError),
    ],
)
@pytest.mark.parametrize("at", [0, BLOCK - 1, BLOCK, MANY // 2 - 1, MANY // 2, MANY + 3])
def test_the_first_element_at_fault_is_named_and_nothing_changes(
    kind: type[HostFeedback], value: float, error: type[CodecError], at: int
) -> None:
    elements = MANY + 5
    feedback = kind(np.full(elements, 1e-3, np.float32), Replica.zeros(elements))
    feedback.encode(2**10)
    feedback.parameters += np.float32(1e-3)
    feedback.parameters[at] = value
    feedback.parameters[-1] = np.nan
    before = (feedback.replica.digest(), feedback.parameters.tobytes())
    kept = feedback.residual().tobytes()

    with pytest.raises(error, match=f"element {at} is") as refused:
        feedback.encode(2**10)

    assert vars(refused.value)["index"] == at
    assert (feedback.replica.digest(), feedback.parameters.tobytes()) == before
    assert feedback.residual().tobytes() == kept


@given(
    data=st.data(),
    elements=st.integers(1, 3 * BLOCK),
    multiple=MULTIPLES,
    seed=st.integers(0, 2**32),
    reach=st.sampled_from([1e-3, 60.0, 127.0, 129.0, np.nan]),
    wait=st.sampled_from([1e-3, 60.0, 127.0, np.nan]),
)
def test_moving_a_residual_on_the_way_does_what_moving_it_afterwards_does(
    data: st.DataObject, elements: int, multiple: int, seed: int, reach: float, wait: float
) -> None:
    """On the way where what is known to wait allows it; where that is not known, never."""
    random = np.random.default_rng(seed)
    change = random.normal(0, 1e-3, (2, elements)).astype(np.float32)
    change[0, random.integers(elements)] = random.choice([1, -1]) * wait
    change[1, random.integers(elements)] = random.choice([1, -1]) * reach
    start, stop = data.draw(ranges_of(elements))
    outcomes = []
    for known in (True, False):
        parameters, waiting = change[0].copy(), np.zeros(elements, np.float32)
        looking = ThresholdPass(parameters, waiting, np.zeros(elements, np.int32), QUANTUM)
        looking.absorb(0, elements)
        if not known:
            looking.forget_stored_max()
        parameters += change[1]
        try:
            ranges = looking.scan(start, stop, multiple, 127, absorbing=True)
            hits = [taken.tolist() for part in ranges for taken in looking.hits_in(*part)]
        except CodecError as error:
            hits = [str(error)]
        outcomes.append((hits, parameters.tobytes(), waiting.tobytes()))

    assert outcomes[0] == outcomes[1]


def test_the_buffers_take_a_quarter_of_a_byte_per_parameter() -> None:
    """Of which nothing is really there before it is needed."""
    elements = 2**23
    parameters, replica = np.zeros(elements, np.float32), Replica.zeros(elements)

    peak = peak_of(lambda: LocalFeedback(parameters, replica).encode(2**10))

    assert peak < 0.26 * elements


@KINDS
@pytest.mark.parametrize("density", [0.0, 0.001, 0.009])
def test_a_step_allocates_what_it_returns(kind: type[HostFeedback], density: float) -> None:
    """And that once more while it is written."""
    random = np.random.default_rng(0)
    hits = np.flatnonzero(random.random(MANY) < density)
    feedback = kind(np.zeros(MANY, np.float32), Replica.zeros(MANY))
    for _ in range(2):
        feedback.parameters[hits] += np.float32(1e-3)
        feedback.encode(1000)
    feedback.parameters[hits] += np.float32(1e-3)

    bodies: list[bytes] = []
    peak = peak_of(lambda: bodies.extend(feedback.encode(1000)))

    assert peak < 2 * sum(map(len, bodies)) + 2**13
