"""Parameters of half precision: what they cannot express is kept, and is nobody's change."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire.target.torch_parameters import TorchParameters
from gradwire_codecs import LocalFeedback, Replica, quantum_exponent_for
from gradwire_codecs.arrays import Float32Array
from gradwire_codecs.feedback.host_feedback import HostFeedback
from support.feedbacks import KINDS

DTYPES = st.lists(
    st.sampled_from([torch.bfloat16, torch.float16, torch.float32]), min_size=1, max_size=4
)
SCALES = st.sampled_from([1e-6, 1e-3, 0.1, 3.0])
INT32_MAX = 2**31 - 1


class Worker:
    """Tensors of some dtypes that take part in a run, without a network."""

    def __init__(
        self, kind: type[HostFeedback], dtypes: list[torch.dtype], initial: Float32Array
    ) -> None:
        parts = torch.from_numpy(initial).chunk(len(dtypes))
        # `Parameter`, so that those of float32 are views of the vector, as a module's are.
        self.tensors = [
            torch.nn.Parameter(part.to(dtype, copy=True))
            for part, dtype in zip(parts, dtypes[: len(parts)], strict=True)
        ]
        named = [(str(i), tensor) for i, tensor in enumerate(self.tensors)]
        self.parameters = TorchParameters(named)
        # As `join` does it: everyone begins with what the first worker's values lead to.
        exponent = quantum_exponent_for([float(np.abs(initial).max())])
        self.feedback = kind(
            self.parameters.vector, Replica.from_parameters(initial, quantum_exponent=exponent)
        )
        self.settle()

    @torch.no_grad()
    def train(self, random: np.random.Generator, scale: float) -> Float32Array:
        """Change the tensors as an optimizer does; return by how much they really changed."""
        before = self.values()
        for tensor in self.tensors:
            change = torch.from_numpy(random.normal(0, scale, tensor.shape).astype(np.float32))
            tensor.add_(change.to(tensor.dtype))
        return self.values() - before

    def push(self, multiple: int, magnitude_max: int = 127) -> list[bytes]:
        """Do what a step does, until it has bytes."""
        self.parameters.gather()
        parts = self.feedback.encode(multiple, magnitude_max=magnitude_max)
        if self.feedback.stores_residual:
            self.parameters.scatter()
        return parts

    def pull(self, parts: list[bytes]) -> None:
        self.parameters.gather()
        for part in parts:
            self.feedback.apply(part)
        self.parameters.scatter()

    def settle(self) -> None:
        self.feedback.drop_residual()
        self.parameters.scatter()

    @torch.no_grad()
    def values(self) -> Float32Array:
        """Return what the model computes with."""
        flat: Float32Array = torch.cat([t.detach().float().flatten() for t in self.tensors]).numpy()
        return flat


def initial_of(seed: int, elements: int, scale: float) -> Float32Array:
    return np.random.default_rng(seed).normal(0, scale, elements).astype(np.float32)


@KINDS
@given(dtypes=DTYPES, seed=st.integers(0, 2**32), elements=st.integers(4, 300), scale=SCALES)
def test_who_changes_nothing_sends_nothing_whatever_peers_send(
    kind: type[HostFeedback], dtypes: list[torch.dtype], seed: int, elements: int, scale: float
) -> None:
    """Not even a quantum: all that rounding to the tensors' dtypes does stays in the tensors."""
    random = np.random.default_rng(seed)
    initial = initial_of(seed, elements, 1.0)
    idle = Worker(kind, dtypes, initial)
    peer = Worker(LocalFeedback, [torch.float32], initial)

    for _ in range(6):
        peer.train(random, scale)
        idle.pull(peer.push(multiple=random.integers(1, 2000).item()))

        assert idle.push(multiple=1, magnitude_max=INT32_MAX) == []
        assert idle.feedback.replica.digest() == peer.feedback.replica.digest()
        assert not idle.feedback.residual().any()


@KINDS
@given(dtypes=DTYPES, seed=st.integers(0, 2**32), elements=st.integers(4, 300), scale=SCALES)
def test_what_the_tensors_changed_and_nothing_else_is_sent_or_kept(
    kind: type[HostFeedback], dtypes: list[torch.dtype], seed: int, elements: int, scale: float
) -> None:
    """The replica and the residual hold the sum of the real changes, to the rounding of float32."""
    random = np.random.default_rng(seed)
    initial = initial_of(seed, elements, 1.0)
    mine = Worker(kind, dtypes, initial)
    peer = Worker(LocalFeedback, [torch.float32], initial)
    quantum = float(mine.feedback.replica.quantum)
    expected = mine.feedback.replica.values * quantum
    steps = 5

    for _ in range(steps):
        expected += mine.train(random, scale)
        before = peer.feedback.replica.values.copy()
        peer.pull(mine.push(multiple=500))
        changed_by_me = peer.feedback.replica.values - before
        peer.train(random, scale)
        mine.pull(peer.push(multiple=700))
        expected += (peer.feedback.replica.values - before - changed_by_me) * quantum

    mine.parameters.gather()
    got = mine.feedback.replica.values * quantum + mine.feedback.residual()
    # Each step rounds some float32 of this magnitude.
    largest = np.float32(np.abs(expected).max() + scale)
    rounding = 8 * steps * np.spacing(largest)
    assert np.abs(got - expected).max() <= rounding
    assert mine.feedback.replica.digest() == peer.feedback.replica.digest()


@KINDS
@given(
    dtypes=DTYPES,
    others=DTYPES,
    seed=st.integers(0, 2**32),
    elements=st.integers(8, 300),
    scale=SCALES,
)
def test_at_the_end_all_workers_hold_the_same_bits(
    kind: type[HostFeedback],
    dtypes: list[torch.dtype],
    others: list[torch.dtype],
    seed: int,
    elements: int,
    scale: float,
) -> None:
    """And one that trains in other dtypes holds what these round the same values to."""
    random = np.random.default_rng(seed)
    initial = initial_of(seed, elements, 1.0)
    workers = [Worker(kind, each, initial) for each in (dtypes, dtypes, others)]
    for multiple, magnitude_max in [(1000, 127), (1000, 127), (1, INT32_MAX)]:
        if multiple > 1:  # the last round is the flush
            for worker in workers:
                worker.train(random, scale)
        sent = [worker.push(multiple, magnitude_max) for worker in workers]
        for worker in workers:
            for other, parts in zip(workers, sent, strict=True):
                if other is not worker:
                    worker.pull(parts)

    for worker in workers:
        worker.settle()

    first, second, third = workers
    assert len({worker.feedback.replica.digest() for worker in workers}) == 1
    assert len({worker.parameters.vector.tobytes() for worker in workers}) == 1
    assert [t.detach().float().tolist() for t in first.tensors] == [
        t.detach().float().tolist() for t in second.tensors
    ]
    rounded = [
        part.to(dtype).float()
        for part, dtype in zip(
            torch.from_numpy(first.parameters.vector).chunk(len(others)), others, strict=False
        )
    ]
    assert third.values().tobytes() == torch.cat(rounded).numpy().tobytes()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_peers_send_below_the_resolution_of_a_tensor_adds_up(dtype: torch.dtype) -> None:
    """256 changes of 2^-15 are 2^-7, though none of them shows in a tensor near 1."""
    initial = np.ones(4, np.float32)
    mine = Worker(LocalFeedback, [dtype], initial)
    peer = Worker(LocalFeedback, [torch.float32], initial)

    for _ in range(256):
        peer.parameters.vector[:] += np.float32(2.0**-15)
        mine.pull(peer.push(multiple=512))

    assert mine.parameters.vector.tolist() == [1 + 2.0**-7] * 4
    assert mine.values().tolist() == [1 + 2.0**-7] * 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_an_optimizer_changes_below_the_resolution_of_a_tensor_is_no_change(
    dtype: torch.dtype,
) -> None:
    """As without gradwire: the sum is rounded away before anyone else sees it."""
    mine = Worker(LocalFeedback, [dtype], np.ones(4, np.float32))

    for _ in range(100):
        with torch.no_grad():
            mine.tensors[0].add_(2.0**-13)

        assert mine.push(multiple=1) == []
    assert mine.values().tolist() == [1.0] * 4
