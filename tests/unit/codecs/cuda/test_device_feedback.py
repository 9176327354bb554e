"""Vectors on a device: the bytes and the bits that the CPU gives, and errors change nothing."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.settings.training import Feedback as FeedbackSetting
from gradwire.target.host import host_feedback
from gradwire_codecs import (
    CodecError,
    Feedback,
    LocalFeedback,
    MalformedUpdateError,
    NonFiniteError,
    OutOfRangeError,
    Replica,
    decode,
)
from gradwire_codecs.arrays import Float32Array
from gradwire_codecs.cuda.feedback import (
    DeviceFeedback,
    DeviceLocalFeedback,
    DeviceSharedFeedback,
)
from gradwire_codecs.cuda.threshold_pass import TILE
from gradwire_codecs.feedback.contributions import encode_dense
from gradwire_codecs.feedback.threshold_pass import capacity_of
from support.tiers import examples

KINDS = pytest.mark.parametrize("kind", ["local", "shared"])
FEW = settings(max_examples=examples(6))  # a program takes milliseconds where it is interpreted


@dataclass
class Pair:
    """The same worker on the CPU and on the device."""

    host: Feedback
    device: DeviceFeedback
    parameters: Float32Array
    tensor: torch.Tensor

    @classmethod
    def start(cls, initial: Float32Array, device: torch.device, *, kind: FeedbackSetting) -> "Pair":
        parameters = initial.copy()
        tensor = torch.tensor(initial, device=device)
        host = host_feedback(parameters, Replica.from_parameters(initial), kind=kind, threads=1)
        found = DeviceLocalFeedback if kind == "local" else DeviceSharedFeedback
        on_device = found(tensor, Replica.from_parameters(initial))
        host.drop_residual()
        on_device.drop_residual()
        return cls(host, on_device, parameters, tensor)

    def train(self, change: Float32Array) -> None:
        self.parameters += change
        self.tensor.copy_(torch.from_numpy(self.parameters))

    def both(self, action: Callable[[Feedback], object]) -> None:
        """Do something with both, which are the same afterwards."""
        for feedback in (self.host, self.device):
            action(feedback)
        self.assert_same()

    def assert_same(self) -> None:
        assert self.host.replica.values.tobytes() == self.device.replica.values.tobytes()
        assert self.host.replica.digest() == self.device.replica.digest()
        assert self.parameters.tobytes() == self.tensor.numpy(force=True).tobytes()
        assert self.host.residual().tobytes() == self.device.residual().tobytes()
        some = slice(1, -1, 3)
        assert self.host.residual(some).tobytes() == self.device.residual(some).tobytes()
        assert self.host.quanta_sent == self.device.quanta_sent


def changes_of(random: np.random.Generator, elements: int, tau: float) -> Float32Array:
    """Return changes of all sizes around a threshold, with all that is special about floats."""
    change = random.normal(0, tau, elements).astype(np.float32)
    change *= random.choice([0.0, 1e-40, 0.01, 0.5, 1.0, 30.0], elements).astype(np.float32)
    below, above = np.nextafter(np.float32(tau), [np.float32(0), np.float32(1)])
    special = np.array([tau, -tau, below, -below, above, 0.0, -0.0, 1e-42], np.float32)
    places = random.integers(0, elements, min(elements, 20))
    change[places] = random.choice(special, places.size)
    return change


def add_and_fail(feedback: Feedback, change: Float32Array) -> None:
    feedback.add_change(change)
    raise CodecError


@KINDS
@FEW
@given(
    seed=st.integers(0, 2**32),
    elements=st.sampled_from([1, 2, 63, 64, 65, TILE - 1, TILE, TILE + 1, 2500]),
    multiple=st.sampled_from([1, 3, 1000, 2**20]),
    magnitude_max=st.sampled_from([1, 2, 127, 2**31 - 1]),
)
def test_bytes_and_bits_are_those_of_the_cpu(
    device: torch.device,
    kind: FeedbackSetting,
    seed: int,
    elements: int,
    multiple: int,
    magnitude_max: int,
) -> None:
    """Over steps of our own and of a peer."""
    random = np.random.default_rng(seed)
    initial = random.normal(0, 0.1, elements).astype(np.float32)
    pair = Pair.start(initial, device, kind=kind)

    for _ in range(2):
        pair.train(changes_of(random, elements, multiple * 2.0**-24))
        sent = pair.host.encode(multiple, magnitude_max=magnitude_max)

        assert pair.device.encode(multiple, magnitude_max=magnitude_max) == sent
        pair.assert_same()

        peer = LocalFeedback(initial.copy(), Replica.from_parameters(initial))
        peer.parameters += changes_of(random, elements, multiple * 2.0**-24)
        for part in peer.encode(multiple, magnitude_max=magnitude_max):
            assert pair.device.apply(part) == pair.host.apply(part)
        pair.assert_same()


@KINDS
@pytest.mark.parametrize("magnitude_max", [7, 127])
@pytest.mark.parametrize("elements", [1, 2500])
def test_dense_contributions_are_those_of_the_cpu(
    device: torch.device, kind: FeedbackSetting, magnitude_max: int, elements: int
) -> None:
    """Over two rounds, and results that come in bytes and decoded."""
    random = np.random.default_rng(6)
    initial = random.normal(0, 0.1, elements).astype(np.float32)
    pair = Pair.start(initial, device, kind=kind)
    ranges = [(0, elements // 3), (elements // 3, elements)] if elements > 1 else [(0, 1)]

    for _ in range(2):
        pair.train(random.normal(0, 1e-3, elements).astype(np.float32))
        sent = encode_dense(pair.host, ranges, magnitude_max, bytes_max=1000)

        assert encode_dense(pair.device, ranges, magnitude_max, bytes_max=1000) == sent
        assert sent
        pair.assert_same()
        for part in sent:
            for given_ in (part, decode(part, elements)):
                assert pair.device.apply(given_) == pair.host.apply(given_)
                pair.assert_same()


@KINDS
def test_a_fault_makes_no_dense_contribution(device: torch.device, kind: FeedbackSetting) -> None:
    pair = Pair.start(np.zeros(2500, np.float32), device, kind=kind)
    change = np.full(2500, 0.5, np.float32)
    change[2000] = np.nan
    pair.train(change)

    with pytest.raises(NonFiniteError, match="element 2000 is nan"):
        encode_dense(pair.device, [(0, 1000), (1000, 2500)], 127, bytes_max=1000)

    assert pair.tensor.cpu().numpy().tobytes() == change.tobytes()


@KINDS
def test_more_hits_than_there_is_room_for_are_cut_where_the_cpu_cuts_them(
    device: torch.device, kind: FeedbackSetting
) -> None:
    random = np.random.default_rng(1)
    elements = 40_000
    assert capacity_of(elements) < elements
    pair = Pair.start(np.zeros(elements, np.float32), device, kind=kind)
    pair.train(random.normal(0, 0.1, elements).astype(np.float32))

    sent = pair.host.encode(1)

    assert len(sent) > 1
    assert pair.device.encode(1) == sent
    pair.assert_same()


@KINDS
def test_an_update_that_is_too_large_is_split_as_on_the_cpu(
    device: torch.device, kind: FeedbackSetting
) -> None:
    random = np.random.default_rng(2)
    pair = Pair.start(np.zeros(3000, np.float32), device, kind=kind)
    pair.train(random.normal(0, 1e-3, 3000).astype(np.float32))

    sent = pair.host.encode(8000, bytes_max=300, start=100, stop=2900)

    assert len(sent) > 2
    assert pair.device.encode(8000, bytes_max=300, start=100, stop=2900) == sent
    pair.assert_same()


@KINDS
def test_what_is_done_seldom_has_the_same_bits_too(
    device: torch.device, kind: FeedbackSetting
) -> None:
    """Sums, mended blocks, steps that send nothing, saved residuals, and the end."""
    random = np.random.default_rng(3)
    pair = Pair.start(random.normal(0, 0.1, 2500).astype(np.float32), device, kind=kind)
    pair.train(random.normal(0, 1e-3, 2500).astype(np.float32))
    total = np.where(random.random(2000) < 0.3, random.integers(-9999, 9999, 2000), 0)
    damage = random.integers(-(2**31), 2**31, 700).astype(np.int32)
    residual = random.normal(0, 1e-3, 2500).astype(np.float32)

    def refuse(feedback: Feedback) -> None:
        with pytest.raises(CodecError), feedback.restoring_on_error():
            add_and_fail(feedback, residual)

    pair.both(lambda feedback: feedback.apply_sum(total.astype(np.int32), 400))
    pair.both(lambda feedback: feedback.absorb())
    pair.both(
        lambda feedback: (
            feedback.correct_replica(damage, 1100),
            feedback.correct_replica(-damage, 1100),
        )
    )
    assert pair.host.first_threshold(0.01) == pair.device.first_threshold(0.01)
    pair.both(lambda feedback: feedback.restore_residual(residual))
    pair.both(lambda feedback: feedback.add_change(residual))
    pair.both(refuse)
    pair.both(lambda feedback: feedback.drop_residual())


@KINDS
@pytest.mark.parametrize(
    ("value", "error"),
    [
        (np.nan, NonFiniteError),
        (np.inf, NonFiniteError),
        (-np.inf, NonFiniteError),
        (127.9999999, OutOfRangeError),
        (-1e30, OutOfRangeError),
    ],
)
@pytest.mark.parametrize("at", [0, TILE - 1, TILE, 2499])
def test_an_element_at_fault_is_named_and_changes_nothing(
    device: torch.device, kind: FeedbackSetting, value: float, error: type[CodecError], at: int
) -> None:
    """The first one, as on the CPU, whichever program looks at it first."""
    random = np.random.default_rng(5)
    pair = Pair.start(np.zeros(2500, np.float32), device, kind=kind)
    change = random.normal(0, 1e-3, 2500).astype(np.float32)
    change[at] = value
    change[at + 1 :: 7] = np.nan
    pair.train(change)
    before = pair.device.replica.digest(), pair.tensor.clone()

    pair.device.close()
    for refused in (lambda: pair.device.encode(16_777), pair.device.check):
        with pytest.raises(error, match=f"element {at} is") as raised:
            refused()

        with pytest.raises(error) as expected:
            pair.host.encode(16_777)
        assert vars(raised.value).keys() == vars(expected.value).keys()
        assert str(raised.value) == str(expected.value)
        assert pair.device.replica.digest() == before[0]
        assert torch.equal(pair.tensor.view(torch.int32), before[1].view(torch.int32))


def test_a_fault_among_more_hits_than_there_is_room_for_changes_nothing(
    device: torch.device,
) -> None:
    pair = Pair.start(np.zeros(40_000, np.float32), device, kind="shared")
    change = np.full(40_000, 0.5, np.float32)
    change[39_999] = np.inf
    pair.train(change)
    before = pair.device.replica.digest()

    with pytest.raises(NonFiniteError, match="element 39999 is inf"):
        pair.device.encode(1)

    assert pair.device.replica.digest() == before
    assert pair.tensor.cpu().tolist() == change.tolist()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_found_without_a_threshold(
    device: torch.device, value: float
) -> None:
    pair = Pair.start(np.zeros(3000, np.float32), device, kind="local")
    pair.device.check_finite()
    change = np.full(3000, 2000.0, np.float32)  # out of range is not looked for
    pair.train(change)
    pair.device.check_finite()
    change[[1234, 2000]] = value
    pair.train(change)

    with pytest.raises(NonFiniteError, match="element 1234 is"):
        pair.device.check_finite()


def test_a_malformed_update_changes_nothing(device: torch.device) -> None:
    pair = Pair.start(np.zeros(100, np.float32), device, kind="local")
    pair.train(np.ones(100, np.float32))
    [sent] = pair.host.encode(2**20)
    before = pair.device.replica.digest()

    with pytest.raises(MalformedUpdateError):
        pair.device.apply(sent[:-1])

    assert pair.device.replica.digest() == before


def test_parameters_of_no_use_are_refused(device: torch.device) -> None:
    for wrong in (torch.zeros(3, dtype=torch.float64), torch.zeros(4), torch.zeros(6)[::2]):
        with pytest.raises(CodecError, match="a flat float32 tensor of 3 elements"):
            DeviceLocalFeedback(wrong.to(device), Replica.zeros(3))


def test_the_values_of_a_replica_are_a_copy_that_cannot_be_written_to(
    device: torch.device,
) -> None:
    feedback = DeviceLocalFeedback(torch.zeros(3, device=device), Replica.zeros(3))

    with pytest.raises(ValueError, match="read-only"):
        feedback.replica.values[0] = 1
