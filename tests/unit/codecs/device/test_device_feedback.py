"""Vectors on a device: the bytes and the bits that the host gives, and errors change nothing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import methodcaller
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from gradwire_codecs import (
    CodecError,
    Feedback,
    LocalFeedback,
    MalformedUpdateError,
    NonFiniteError,
    OutOfRangeError,
    Replica,
    SharedFeedback,
    decode,
)
from gradwire_codecs.arrays import Float32Array
from gradwire_codecs.device import DeviceFeedback, DeviceLocalFeedback, DeviceSharedFeedback
from gradwire_codecs.feedback.contributions import encode_dense
from gradwire_codecs.feedback.host_feedback import HostFeedback
from gradwire_codecs.feedback.threshold_pass import capacity_of
from gradwire_codecs.format.header import INT32_MAX
from gradwire_codecs.kernels.threshold import CHUNK
from support.device import DEVICE

Kind: TypeAlias = tuple[type[HostFeedback], type[DeviceFeedback]]

LOCAL: Kind = (LocalFeedback, DeviceLocalFeedback)
KINDS = pytest.mark.parametrize(
    "kind", [LOCAL, (SharedFeedback, DeviceSharedFeedback)], ids=["local", "shared"]
)


@dataclass
class Pair:
    """The same worker on the host and on the device."""

    host: HostFeedback
    device: DeviceFeedback

    @classmethod
    def start(cls, kind: Kind, initial: Float32Array) -> "Pair":
        on_host, on_device = kind
        replica = Replica.from_parameters(initial)
        tensor = torch.tensor(initial, device=DEVICE)
        pair = cls(on_host(initial.copy(), replica), on_device(tensor, replica))
        pair.both(lambda feedback: feedback.drop_residual())
        return pair

    def train(self, change: Float32Array) -> None:
        """Change the parameters as an optimizer does."""
        self.host.parameters += change
        self.device.parameters.copy_(torch.from_numpy(self.host.parameters))

    def both(self, action: Callable[[Feedback], object]) -> None:
        """Do something with both: it has the same result, and they are the same afterwards."""
        assert action(self.device) == action(self.host)
        host, device = self.host, self.device
        assert host.replica.values.tobytes() == device.replica.values.tobytes()
        assert host.parameters.tobytes() == device.parameters.numpy(force=True).tobytes()
        assert host.residual().tobytes() == device.residual().tobytes()
        assert host.quanta_sent == device.quanta_sent


@contextmanager
def unchanged(feedback: DeviceFeedback) -> Iterator[None]:
    """Fail if the block changes anything."""
    values, parameters = feedback.replica.values, feedback.parameters.clone()
    residual = feedback.residual()
    yield
    assert feedback.replica.values.tobytes() == values.tobytes()
    assert torch.equal(feedback.parameters.view(torch.int32), parameters.view(torch.int32))
    assert feedback.residual().tobytes() == residual.tobytes()


def changes_of(random: np.random.Generator, elements: int, tau: float) -> Float32Array:
    """Return changes of all sizes around a threshold, with all that is special about floats."""
    change = random.normal(0, tau, elements).astype(np.float32)
    change *= random.choice([0.0, 1e-40, 0.01, 0.5, 1.0, 30.0, 1e6], elements).astype(np.float32)
    below, above = np.nextafter(np.float32(tau), [np.float32(0), np.float32(1)])
    special = np.array([tau, -tau, below, -below, above, 0.0, -0.0, 1e-42], np.float32)
    places = random.integers(0, elements, min(elements, 20))
    change[places] = random.choice(special, places.size)
    whole = random.integers(0, elements, elements // 2)
    change[whole] = random.integers(-30, 30, whole.size) * tau
    return change.clip(-30, 30)


@KINDS
@given(
    seed=st.integers(0, 2**32),
    elements=st.sampled_from([1, 2, 63, 64, 65, 2500]),
    multiple=st.sampled_from([1, 3, 1000, 2**20, 2**24 - 3]),
    magnitude_max=st.sampled_from([1, 2, 127, INT32_MAX]),
)
def test_what_is_sent_and_applied_is_the_same(
    kind: Kind, seed: int, elements: int, multiple: int, magnitude_max: int
) -> None:
    """Over steps of our own and of a peer."""
    random = np.random.default_rng(seed)
    initial = random.normal(0, 0.1, elements).astype(np.float32)
    pair = Pair.start(kind, initial)
    peer = LocalFeedback(initial.copy(), Replica.from_parameters(initial))

    for _ in range(2):
        pair.train(changes_of(random, elements, multiple * 2.0**-24))
        pair.both(lambda feedback: feedback.encode(multiple, magnitude_max=magnitude_max))

        peer.parameters += changes_of(random, elements, multiple * 2.0**-24)
        for part in peer.encode(multiple, magnitude_max=magnitude_max):
            pair.both(methodcaller("apply", part))
            pair.both(methodcaller("apply", decode(part, elements)))


@KINDS
@pytest.mark.parametrize("magnitude_max", [7, 127])
@pytest.mark.parametrize(("elements", "scale"), [(1, 1e-3), (2500, 1e-3), (2500, 10.0)])
def test_dense_contributions_are_the_same(
    kind: Kind, magnitude_max: int, elements: int, scale: float
) -> None:
    """Over two rounds, and results that come in bytes and decoded."""
    random = np.random.default_rng(6)
    pair = Pair.start(kind, random.normal(0, 0.1, elements).astype(np.float32))
    ranges = [(0, elements // 3), (elements // 3, elements)] if elements > 1 else [(0, 1)]
    sent: list[bytes] = []

    def contribute(feedback: Feedback) -> list[bytes]:
        sent[:] = encode_dense(feedback, ranges, magnitude_max, bytes_max=1000)
        return sent[:]

    for _ in range(2):
        pair.train(random.normal(0, scale, elements).astype(np.float32))
        pair.both(contribute)
        assert sent
        for part in sent:
            pair.both(methodcaller("apply", part))
            pair.both(methodcaller("apply", decode(part, elements)))


@KINDS
def test_updates_are_cut_where_the_host_cuts_them(kind: Kind) -> None:
    """Where there are more hits than it has room for, of a range, and by size."""
    random = np.random.default_rng(1)
    elements = 3 * CHUNK
    pair = Pair.start(kind, np.zeros(elements, np.float32))
    change = random.normal(0, 0.1, elements).astype(np.float32)
    change[-CHUNK:] = 0  # no hits in the last chunk
    assert capacity_of(elements) < np.count_nonzero(change)

    pair.train(change)
    pair.both(lambda feedback: feedback.encode(2**24, start=7, stop=elements - 7))
    pair.both(lambda feedback: feedback.encode(2**20, start=7, stop=elements - 7, bytes_max=9000))
    pair.both(lambda feedback: feedback.encode(1))


@KINDS
def test_what_is_done_seldom_has_the_same_bits_too(kind: Kind) -> None:
    """Sums, mended blocks, steps that send nothing, saved residuals, and the end."""
    random = np.random.default_rng(3)
    pair = Pair.start(kind, random.normal(0, 0.1, 2500).astype(np.float32))
    # Some so far below their elements of the replica that the distance is rounded.
    pair.host.parameters[::2] = random.normal(0, 1e-4, 1250)
    pair.train(random.choice([0, 10], 2500).astype(np.float32))
    total = np.where(random.random(2000) < 0.3, random.integers(-9999, 9999, 2000), 0)
    damage = random.integers(-(2**31), 2**31, 700).astype(np.int32)
    residual = random.normal(0, 1e-3, 2500).astype(np.float32)

    def fail(feedback: Feedback) -> None:
        feedback.add_change(residual)
        raise CodecError

    def add_and_fail(feedback: Feedback) -> None:
        with pytest.raises(CodecError), feedback.restoring_on_error():
            fail(feedback)

    pair.both(lambda feedback: feedback.apply_sum(total.astype(np.int32), 400))
    pair.both(lambda feedback: feedback.absorb())
    pair.both(lambda feedback: feedback.correct_replica(damage, 1100))
    pair.both(lambda feedback: feedback.correct_replica(-damage, 1100))
    pair.both(lambda feedback: feedback.first_threshold(0.01))
    pair.both(lambda feedback: feedback.residual(slice(1, -1, 3)).tobytes())
    pair.both(lambda feedback: feedback.replica.digest())
    pair.both(lambda feedback: feedback.restore_residual(residual))
    pair.both(lambda feedback: feedback.add_change(residual[:100], 50))
    pair.both(add_and_fail)
    pair.both(lambda feedback: feedback.drop_residual())
    pair.both(lambda feedback: feedback.encode(1))


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
@pytest.mark.parametrize("at", [0, 1023, 2499])
def test_an_element_at_fault_is_named_and_changes_nothing(
    kind: Kind, value: float, error: type[CodecError], at: int
) -> None:
    """The first one, as on the host."""
    random = np.random.default_rng(5)
    pair = Pair.start(kind, np.zeros(2500, np.float32))
    change = random.normal(0, 1e-3, 2500).astype(np.float32)
    change[at] = value
    change[at + 1 :: 7] = np.nan
    pair.train(change)
    with pytest.raises(error) as expected:
        pair.host.encode(16_777)

    for refused in (
        lambda: pair.device.encode(16_777),
        pair.device.check,
        lambda: encode_dense(pair.device, [(0, 1000), (1000, 2500)], 127, bytes_max=1000),
    ):
        with unchanged(pair.device), pytest.raises(error, match=f"element {at} is") as raised:
            refused()
        assert str(raised.value) == str(expected.value)
        assert vars(raised.value).keys() == vars(expected.value).keys()


def test_what_is_stored_counts_towards_the_range() -> None:
    pair = Pair.start((SharedFeedback, DeviceSharedFeedback), np.zeros(100, np.float32))
    for _ in range(2):
        pair.both(lambda feedback: feedback.check())
        pair.both(lambda feedback: feedback.absorb())
        pair.train(np.full(100, 70.0, np.float32))

    for feedback in (pair.host, pair.device):
        with pytest.raises(OutOfRangeError, match="element 0 is 140"):
            feedback.check()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_found_without_a_threshold(value: float) -> None:
    feedback = DeviceLocalFeedback(torch.zeros(3000, device=DEVICE), Replica.zeros(3000))
    feedback.parameters += 2000.0  # out of range is not looked for
    feedback.check_finite()
    feedback.parameters[[1234, 2000]] = value

    with pytest.raises(NonFiniteError, match="element 1234 is"):
        feedback.check_finite()


@KINDS
def test_a_malformed_update_changes_nothing(kind: Kind) -> None:
    pair = Pair.start(kind, np.zeros(100, np.float32))
    pair.train(np.ones(100, np.float32))
    [sent] = pair.host.encode(2**20)

    for malformed in (sent[:-1], decode(sent, 100).within(0, 101)):
        with unchanged(pair.device), pytest.raises(MalformedUpdateError):
            pair.device.apply(malformed)


class Waits(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operations of torch whose result the host waits for."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.nonzero.default, torch.ops.aten._local_scalar_dense.default):
            self.found.append(func.name())
        return func(*args, **(kwargs or {}))


@KINDS
def test_a_step_waits_for_the_device_once(kind: Kind) -> None:
    pair = Pair.start(kind, np.zeros(2500, np.float32))
    pair.train(np.full(2500, 0.5, np.float32))
    peer = LocalFeedback(np.ones(2500, np.float32), Replica.zeros(2500))
    [update] = peer.encode(2**24)

    with Waits() as waits:
        assert pair.device.encode(2**20)
        pair.device.apply(update)

    assert waits.found == ["aten::nonzero"]


def test_the_script_may_have_another_default_dtype() -> None:
    """It is what torch makes of an integer times a number."""
    pair = Pair.start(LOCAL, np.zeros(100, np.float32))
    pair.train(np.full(100, 0.3, np.float32))
    torch.set_default_dtype(torch.bfloat16)
    try:
        pair.both(lambda feedback: feedback.encode(3))
        pair.both(lambda feedback: feedback.apply_sum(np.arange(100, dtype=np.int32)))
        pair.both(lambda feedback: feedback.drop_residual())
    finally:
        torch.set_default_dtype(torch.float32)


def test_parameters_of_no_use_are_refused() -> None:
    for wrong in (torch.zeros(3, dtype=torch.float64), torch.zeros(4), torch.zeros(6)[::2]):
        with pytest.raises(CodecError, match="a flat float32 tensor of 3 elements"):
            DeviceLocalFeedback(wrong.to(DEVICE), Replica.zeros(3))


def test_the_values_of_a_replica_are_a_copy_that_cannot_be_written_to() -> None:
    feedback = DeviceLocalFeedback(torch.zeros(3, device=DEVICE), Replica.zeros(3))

    with pytest.raises(ValueError, match="read-only"):
        feedback.replica.values[0] = 1
