"""Residual feedback: nothing is lost, nothing is invented, and errors change nothing."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_codecs import (
    CodecError,
    LocalFeedback,
    MalformedUpdateError,
    NonFiniteError,
    OutOfRangeError,
    Replica,
    Update,
    decode,
    encode,
    multiple_of,
)
from gradwire_codecs.arrays import Float32Array
from gradwire_codecs.feedback import host_feedback
from gradwire_codecs.feedback.host_feedback import HostFeedback
from gradwire_codecs.format.update import BYTES_MIN
from gradwire_codecs.kernels.threshold import CHUNK
from support.feedbacks import KINDS, start, train

VECTOR, REPLICA = np.ones(4, np.float32), Replica.zeros(4)


@KINDS
@given(
    seed=st.integers(0, 2**32),
    elements=st.integers(1, 5000),
    steps=st.integers(1, 6),
    threshold=st.sampled_from([1e-7, 1e-4, 1e-3, 1e-2]),
    magnitude_max=st.sampled_from([1, 3, 127]),
)
def test_sent_plus_kept_is_what_came_in(
    kind: type[HostFeedback],
    seed: int,
    elements: int,
    steps: int,
    threshold: float,
    magnitude_max: int,
) -> None:
    """Conservation, over own steps and peers' updates, to the rounding of float32."""
    random = np.random.default_rng(seed)
    initial = random.normal(0, 0.1, elements).astype(np.float32)
    feedback = start(kind, initial)
    peer = start(LocalFeedback, initial)
    began = feedback.parameters.astype(np.float64)
    came_in = np.zeros(elements)
    came_from_peer = np.zeros(elements)
    multiple = multiple_of(threshold, float(feedback.replica.quantum))

    for _ in range(steps):
        before = feedback.parameters.copy()
        train(feedback, random)
        came_in += feedback.parameters.astype(np.float64) - before
        for part in feedback.encode(multiple, magnitude_max=magnitude_max):
            peer.apply(part)
        shared = peer.replica.values.copy()
        train(peer, random)
        for part in peer.encode(multiple):
            feedback.apply(part)
        came_from_peer += (peer.replica.values - shared) * float(peer.replica.quantum)

    expected = began + came_in + came_from_peer
    got = feedback.replica.values * float(feedback.replica.quantum) + feedback.residual()
    # Every step rounds a few float32 of magnitude below 1: 2^-24 each.
    assert np.abs(got - expected).max() <= 8 * steps * 2.0**-24
    assert feedback.replica.digest() == peer.replica.digest()


@KINDS
@pytest.mark.parametrize("bytes_max", [BYTES_MIN + 100, 2**22])
def test_it_is_known_how_much_was_sent(kind: type[HostFeedback], bytes_max: int) -> None:
    random = np.random.default_rng(5)
    feedback = start(kind, np.zeros(9_000, np.float32))
    for multiple in (9_000, 20_000):
        train(feedback, random)
        updates = [decode(body, 9_000) for body in feedback.encode(multiple, bytes_max=bytes_max)]

        changes = [int(np.abs(update.change.astype(np.int64)).sum()) for update in updates]
        assert feedback.quanta_sent == sum(changes) > 9_000

    assert feedback.encode(2**24) == []
    assert feedback.quanta_sent == 0


@KINDS
@pytest.mark.parametrize("value", [127.9999999, 300.0, 1e30, -128.5])
def test_an_element_out_of_range_changes_nothing(kind: type[HostFeedback], value: float) -> None:
    feedback = start(kind, np.zeros(3000, np.float32))
    feedback.parameters[:100] = 0.5
    feedback.parameters[2500] = value
    before = (feedback.replica.digest(), feedback.parameters.tobytes())

    with pytest.raises(OutOfRangeError, match="element 2500 is"):
        feedback.encode(2**24, magnitude_max=2**31 - 1)

    assert (feedback.replica.digest(), feedback.parameters.tobytes()) == before


def test_an_interrupted_encoding_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever goes on after a Ctrl-C sends later what nobody was sent now."""
    elements = 20 * CHUNK
    feedback = LocalFeedback(np.full(elements, 1e-3, np.float32), Replica.zeros(elements))
    feedback.parameters[:: elements // 1000] = 0.5
    before, kept = feedback.replica.digest(), feedback.residual().tobytes()

    def interrupted(update: Update, bytes_max: int) -> list[bytes]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(host_feedback, "split_update", interrupted)
        with pytest.raises(KeyboardInterrupt):
            feedback.encode(2**20)
    assert (feedback.replica.digest(), feedback.residual().tobytes()) == (before, kept)

    other = Replica.zeros(elements)
    for body in feedback.encode(2**20):
        other.apply(body)
    assert np.count_nonzero(other.values) > 900
    assert other.digest() == feedback.replica.digest()


@KINDS
def test_a_dense_update_is_encoded_in_ranges(kind: type[HostFeedback]) -> None:
    """More hits than there is room for: several updates, together complete."""
    elements = 3 * CHUNK + 17
    random = np.random.default_rng(6)
    feedback = start(kind, np.zeros(elements, np.float32))
    train(feedback, random, 0.01)
    peer = start(kind, np.zeros(elements, np.float32))

    parts = feedback.encode(1, magnitude_max=2**31 - 1)
    for part in parts:
        peer.apply(part)

    assert len(parts) == 4
    assert peer.replica.digest() == feedback.replica.digest()
    assert np.abs(feedback.residual()).max() < feedback.replica.quantum


@KINDS
def test_a_sum_of_updates_does_what_the_updates_do(kind: type[HostFeedback]) -> None:
    random = np.random.default_rng(7)
    one_by_one, at_once = (start(kind, np.zeros(9000, np.float32)) for _ in range(2))
    total = Replica.zeros(9000)
    peer = start(LocalFeedback, np.zeros(9000, np.float32))
    for _ in range(5):
        train(peer, random, 1e-2)
        for part in peer.encode(100_000):
            one_by_one.apply(part)
            total.apply(part)

    at_once.apply_sum(total.values)

    assert at_once.replica.digest() == one_by_one.replica.digest()
    np.testing.assert_allclose(at_once.parameters, one_by_one.parameters, atol=2.0**-22)


@KINDS
def test_the_first_threshold_leads_to_the_density_asked_for(kind: type[HostFeedback]) -> None:
    random = np.random.default_rng(8)
    feedback = start(kind, np.zeros(200_000, np.float32))
    train(feedback, random)

    threshold = feedback.first_threshold(0.01)
    [encoded] = feedback.encode(multiple_of(threshold, float(feedback.replica.quantum)))

    assert 0.009 < len(decode(encoded, 200_000).index) / 200_000 < 0.011


def test_the_first_threshold_of_no_change_is_one_quantum_and_of_a_nan_there_is_none() -> None:
    feedback = start(LocalFeedback, np.ones(200_000, np.float32))
    assert feedback.first_threshold(0.01) == 2.0**-24
    feedback.parameters[4] = np.nan

    with pytest.raises(NonFiniteError, match="element 4 is nan"):
        feedback.first_threshold(0.01)


@KINDS
def test_a_residual_is_restored(kind: type[HostFeedback]) -> None:
    random = np.random.default_rng(9)
    feedback = start(kind, np.zeros(500, np.float32))
    train(feedback, random)
    feedback.encode(16_777)
    residual = feedback.residual()
    digest = feedback.replica.digest()

    other = start(kind, np.zeros(500, np.float32))
    other.replica.values[:] = feedback.replica.values
    other.restore_residual(residual)

    np.testing.assert_allclose(other.residual(), residual, atol=2.0**-24)
    assert other.replica.digest() == digest


@pytest.mark.parametrize(
    ("residual", "says"),
    [
        (np.zeros(3, np.float32), "not an array of dtype float32 and shape"),
        (np.zeros(4, np.float64), "not an array of dtype float64"),
        (np.array([0, 0, np.nan, 0], np.float32), "element 2 is nan"),
    ],
)
def test_a_residual_that_does_not_fit_is_refused(residual: Float32Array, says: str) -> None:
    feedback = start(LocalFeedback, np.ones(4, np.float32))

    with pytest.raises(CodecError, match=says):
        feedback.restore_residual(residual)

    assert feedback.parameters.tolist() == [1, 1, 1, 1]


NO_PARAMETERS: list[Any] = [
    np.zeros(5, np.float32),
    np.zeros(4, np.float64),
    np.zeros((2, 2), np.float32),
    np.zeros(8, np.float32)[::2],
    np.broadcast_to(np.float32(0), 4),
    np.zeros(17, np.uint8)[1:].view(np.float32),
]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        *(
            (partial(encode, VECTOR, REPLICA, threshold=threshold), f"threshold={threshold}; it")
            for threshold in (0.0, -1.0, np.inf, np.nan)
        ),
        *(
            (partial(LocalFeedback, parameters, REPLICA), "writeable flat float32 array of 4 elem")
            for parameters in NO_PARAMETERS
        ),
    ],
)
def test_what_cannot_work_is_refused(make: Callable[[], object], says: str) -> None:
    with pytest.raises(CodecError, match=says):
        make()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"multiple": 0}, "multiple=0"),
        ({"multiple": 2**24 + 1}, "multiple=16777217"),
        ({"multiple": 1, "magnitude_max": 0}, "magnitude_max=0"),
        (
            {"multiple": 1, "bytes_max": BYTES_MIN - 1},
            f"bytes_max={BYTES_MIN - 1}; it has to be {BYTES_MIN} or more",
        ),
        ({"multiple": 1, "start": 4}, "elements 4 to 4 of a vector of 4"),
        ({"multiple": 1, "stop": 5}, "elements 0 to 5 of a vector of 4"),
    ],
)
@KINDS
def test_options_out_of_range_are_named_and_change_nothing(
    kind: type[HostFeedback], options: dict[str, int], says: str
) -> None:
    feedback = start(kind, np.zeros(4, np.float32))
    feedback.parameters += 1

    with pytest.raises(CodecError, match=says):
        feedback.encode(**options)

    assert not feedback.replica.values.any()
    assert feedback.parameters.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("threshold", "multiple"), [(1e-12, 1), (2.0**-24, 1), (0.5, 2**23), (9.0, 2**24)]
)
def test_a_threshold_becomes_whole_quanta(threshold: float, multiple: int) -> None:
    assert multiple_of(threshold, 2.0**-24) == multiple


@KINDS
@given(
    value=st.floats(-7.5, 7.5, width=32),
    multiple=st.integers(1, 2000),
    unsent=st.floats(-0.75, 0.75),
    updates=st.integers(1, 300),
)
def test_applying_updates_of_peers_leaves_the_residual_alone(
    kind: type[HostFeedback], value: float, multiple: int, unsent: float, updates: int
) -> None:
    """Rounding that gathered in it would be sent back, by every worker, against the peer."""
    initial = np.array([value], np.float32)
    peer, feedback = start(kind, initial), start(kind, initial)
    tau = multiple * float(feedback.replica.quantum)
    feedback.parameters += np.float32(unsent * tau)
    grain = float(np.spacing(np.float32(abs(value) + updates * tau + tau)))
    before = float(feedback.residual()[0])

    for _ in range(updates):
        update = Update(0, 1, multiple, np.zeros(1, np.uint32), np.ones(1, np.int32))
        peer.apply(update)
        feedback.apply(update)

    assert abs(float(feedback.residual()[0]) - before) <= grain
    assert feedback.replica.digest() == peer.replica.digest()
    assert peer.residual().tolist() == [0.0]


@KINDS
def test_an_update_of_a_longer_vector_is_refused_and_changes_nothing(
    kind: type[HostFeedback],
) -> None:
    feedback = start(kind, np.zeros(4, np.float32))
    longer = Update(0, 5, 1, np.array([4], np.uint32), np.array([1], np.int32))

    for apply in (feedback.apply, feedback.replica.apply):
        with pytest.raises(MalformedUpdateError, match="elements 0 to 5 of a vector of 4"):
            apply(longer)

    assert feedback.parameters.tolist() == [0, 0, 0, 0]


@KINDS
@pytest.mark.parametrize("value", [np.nan, np.inf, 300.0])
def test_a_check_finds_what_encoding_would_refuse(kind: type[HostFeedback], value: float) -> None:
    feedback = start(kind, np.zeros(4, np.float32))
    feedback.check()
    feedback.parameters[2] = value

    with pytest.raises(CodecError, match="element 2 is"):
        feedback.check()

    assert not feedback.replica.values.any()


@KINDS
@given(seed=st.integers(0, 2**32), bit=st.integers(0, 20), start_at=st.integers(0, 30))
def test_damage_is_mended_and_what_a_worker_knows_stays(
    kind: type[HostFeedback], seed: int, bit: int, start_at: int
) -> None:
    """Also what was sent because of the damage is known: it is taken back by a later update."""
    random = np.random.default_rng(seed)
    feedback = start(kind, random.normal(0, 0.1, 100).astype(np.float32))
    others = Replica(feedback.replica.values.copy())
    train(feedback, random)
    quantum = float(feedback.replica.quantum)
    known = feedback.replica.values * quantum + feedback.residual()

    feedback.replica.values[start_at + 3] += 1 << bit
    for part in feedback.encode(multiple_of(1e-3, quantum)):
        others.apply(part)
    place = slice(start_at, start_at + 50)
    feedback.correct_replica((others.values - feedback.replica.values)[place], start_at)

    assert feedback.replica.digest() == others.digest()
    after = feedback.replica.values * quantum + feedback.residual()
    assert np.abs(after - known).max() <= 8 * 2.0**-24


@KINDS
def test_a_sum_may_begin_anywhere(kind: type[HostFeedback]) -> None:
    feedback = start(kind, np.zeros(10, np.float32))

    feedback.apply_sum(np.array([1, 0, -2], np.int32), 7)

    assert feedback.replica.values.tolist() == [0] * 7 + [1, 0, -2]
    assert not feedback.residual().any()
