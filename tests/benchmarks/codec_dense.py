"""Dense contributions to rounds: the time to encode and to add one, its size, and its error.

A dense contribution has 8 or 4 bits for each element, and a threshold for each range of elements.
Error feedback keeps the rest in the residual. Averaging, DiLoCo and synchronous runs send such
contributions; the rivals quantize the same vectors.

Times are processor times of the whole process, since bitsandbytes starts threads of its own. torch
computes with one.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import prod
from time import process_time
from typing import Final

import numpy as np
import torch

from benchmarks.figures import Figure, alternately, at_most, beside
from benchmarks.rivals.quantizers import Quantizer, Ranges, TorchQuantizer, hivemind_quantizers
from gradwire_codecs import Replica, SharedFeedback, decode
from gradwire_codecs.arrays import Float32Array
from gradwire_codecs.feedback.contributions import encode_dense
from gradwire_codecs.feedback.feedback import BYTES_MAX
from gradwire_codecs.replica.round_sum import RoundSum, ranges_of

BITS: Final = (8, 4)

ENCODE_AIM: Final = 3.0
ADD_AIM: Final = 4.0
"""At 8 bits, beside torch. It stores what it adds in half the bytes: a sum here is of int64."""

CHANGE: Final = 1e-3
"""Standard deviation of an element's change in one round."""
TENSORS_DIFFER: Final = 10.0
"""That of a tensor is up to this many times larger or smaller."""


class Contributor:
    """A dense contribution: the worker's side of it, and the master's.

    Parameters
    ----------
    ranges : sequence of (int, int)
        Parts of the vector with a threshold each.
    bits : int
        Of each element.
    """

    name = "gradwire"

    def __init__(self, ranges: Ranges, bits: int) -> None:
        self._ranges = ranges
        self._elements = ranges[-1][1]
        self._magnitude_max = 2 ** (bits - 1) - 1
        # Memory that was never written to is one page of zeros for the kernel.
        replica = Replica(np.full(self._elements, 0, np.int32))
        self._feedback = SharedFeedback(np.full(self._elements, 0, np.float32), replica)
        self._sum = RoundSum(self._elements, ranges)

    def encode(self, change: Float32Array) -> list[bytes]:
        """Change the parameters, and encode that."""
        feedback = self._feedback
        feedback.add_change(change)
        return encode_dense(feedback, self._ranges, self._magnitude_max, bytes_max=BYTES_MAX)

    def add(self, encoded: Sequence[bytes]) -> None:
        """Decode a contribution, and add it to the sum."""
        for body in encoded:
            self._sum.add(decode(body, self._elements))

    def size_bytes(self, encoded: Sequence[bytes]) -> int:
        """Return the size of all encoded updates."""
        return sum(map(len, encoded))

    def sum(self) -> Float32Array:
        """Return the sum of what was added, and begin another one."""
        total = np.zeros(self._elements, np.float32)
        for update in self._sum.take_mean(1, None, is_last=True):
            total[update.index] = update.change * self._feedback.replica.quantum
        return total


def measure(
    shapes: Sequence[tuple[int, ...]],
    *,
    error_elements: int,
    error_rounds: Sequence[int],
    runs: int,
) -> list[Figure]:
    """Measure.

    Parameters
    ----------
    shapes : sequence of tuples of int
        Of the model's tensors.
    error_elements : int
        Length of the vector whose error is measured.
    error_rounds : sequence of int
        After how many rounds.
    runs : int
        Times that everything is timed.
    """
    sizes = list(map(prod, shapes))
    figures = []
    with _one_thread():
        for bits in BITS:
            figures += _costs(sizes, bits, runs)
            for rounds in error_rounds:
                figures += _errors(error_elements, bits, rounds)
    return figures


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch compute with one thread, and not warn that it will drop its quantizers one day."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.quantize_per_tensor", UserWarning)
            yield
    finally:
        torch.set_num_threads(threads)


def _costs(sizes: Sequence[int], bits: int, runs: int) -> list[Figure]:
    change, ranges = _change_of_tensors(sizes), ranges_of(sizes)
    quantizers = [Contributor(ranges, bits), *_rivals(ranges, bits, has_feedback=True)]
    seconds = partial(alternately, runs=runs, clock=process_time)
    encode = seconds(*(partial(each.encode, change) for each in quantizers))
    encoded = [(each, each.encode(change)) for each in quantizers]
    add = seconds(*(partial(each.add, its) for each, its in encoded))
    size = [each.size_bytes(its) / len(change) for each, its in encoded]
    figures = []
    for place, rival in enumerate(quantizers[1:], 1):
        for what, values, unit, times, aim in (
            ("encode", [1e3 * each for each in encode], "ms", runs, ENCODE_AIM),
            ("decode and add to the sum", [1e3 * each for each in add], "ms", runs, ADD_AIM),
            ("size", size, "bytes/element", 1, None),
        ):
            name, ours, its = _named(bits, what), values[0], values[place]
            if aim is None or bits != 8 or not isinstance(rival, TorchQuantizer):
                figures.append(beside(name, ours, unit, rival.name, its, runs=times))
            else:
                figures.append(at_most(name, ours, unit, rival.name, its, aim=aim, runs=times))
    return figures


def _errors(elements: int, bits: int, rounds: int) -> list[Figure]:
    """Return the error of the sum of all rounds, beside rivals without error feedback."""
    ranges = ranges_of([elements])
    ours = error_after(rounds, Contributor(ranges, bits), elements)
    name = _named(bits, f"error, rounds: {rounds}")
    return [
        beside(name, 100 * ours, "% of a change",
               rival.name, 100 * error_after(rounds, rival, elements), runs=1)
        for rival in _rivals(ranges, bits, has_feedback=False)
    ]  # fmt: skip


def error_after(rounds: int, quantizer: Quantizer, elements: int) -> float:
    """Return the error of the sum of all rounds: its root mean square, in that of one change."""
    random = np.random.default_rng(0)
    changed = np.zeros(elements)
    for _ in range(rounds):
        change = random.standard_normal(elements, np.float32) * np.float32(CHANGE)
        changed += change
        quantizer.add(quantizer.encode(change))
    return float(np.sqrt(np.mean((quantizer.sum() - changed) ** 2))) / CHANGE


def _rivals(ranges: Ranges, bits: int, *, has_feedback: bool) -> list[Quantizer]:
    of_torch = TorchQuantizer(ranges, bits, has_feedback=has_feedback)
    return [of_torch, *(hivemind_quantizers(ranges) if bits == 8 else [])]


def _named(bits: int, what: str) -> str:
    return f"dense contribution, {bits} bits: {what}"


def _change_of_tensors(sizes: Sequence[int]) -> Float32Array:
    """Return the change of a model in one round."""
    random = np.random.default_rng(0)
    changes = [
        random.standard_normal(size, np.float32)
        * np.float32(CHANGE * TENSORS_DIFFER ** random.uniform(-1, 1))
        for size in sizes
    ]
    return np.concatenate(changes)
