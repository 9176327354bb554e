"""The codec's speed and memory on 14.6 million parameters, the model size that Strom reports.

The threshold pass stands beside adding two vectors of the same size in place, which reads and
writes about as much memory. What is done with the hits stands beside plain compiled loops over the
same elements in the same order, and a whole update beside Deeplearning4j's algorithm in numpy.
Dense contributions stand beside other quantizers; `benchmarks.codec_dense` says how.
What one thread does is timed by what that takes of a processor, so that other processes count only
where they are in the way of memory; what two do, by the clock on the wall, on a machine that is
otherwise idle. Memory is counted by a process of its own, `benchmarks.codec_memory`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import thread_time
from typing import Final

import numpy as np

from benchmarks import codec_dense, codec_memory
from benchmarks.figures import Figure, alternately, at_most, beside, within
from benchmarks.models import GPT_SHAPES
from benchmarks.programs import Program
from benchmarks.rivals.dl4j import EncodingHandler
from gradwire_codecs import LocalFeedback, Replica, decode, multiple_of
from gradwire_codecs.arrays import Float32Array, Int32Array, UInt32Array
from gradwire_codecs.feedback.threshold_pass import ThresholdPass
from gradwire_codecs.format.update import pack_update
from gradwire_codecs.kernels.compiled import compiled


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    elements: int = 14_600_000
    runs: int = 9
    dense_shapes: tuple[tuple[int, ...], ...] = GPT_SHAPES
    """Tensors of a model with so many elements, for dense contributions."""
    error_elements: int = 2**18
    error_rounds: tuple[int, ...] = (1, 100)


FULL: Final = Plan()
QUICK: Final = Plan(
    elements=200_000,  # of fewer, the first replica would find room in what is free
    runs=1,
    dense_shapes=((100, 100), (100,), (99, 100)),
    error_elements=2_000,
    error_rounds=(1, 3),
)

PASS_AIMS: Final = {0.0001: 1.25, 0.001: 1.3, 0.01: 1.6, 0.05: 3.0}
"""Part of the elements that are hits, and the aim for the pass."""

HITS_DENSITIES: Final = (0.001, 0.01)
LOOP_AIM: Final = 1.5
NANOSECONDS_DENSITY: Final = 0.01
ENCODE_AIM: Final = 10.0
APPLY_AIM: Final = 15.0
"""Nanoseconds per element."""

MEMORY_DENSITY: Final = 0.01
MEMORY_AIM: Final = 4.1
REPLICA_BYTES: Final = 4.0
"""Per parameter."""

of_one_thread = partial(alternately, clock=thread_time)

MAGNITUDE_MAX: Final = 1
"""So that a hit stays one in every run, and both sides of a comparison send as much of it."""
MULTIPLE: Final = 2**12
LASTING: Final = 1000
"""Thresholds that a hit is worth at first: more than are taken from it in all runs."""


def run(plan: Plan) -> list[Figure]:
    """Measure."""
    elements, runs = plan.elements, plan.runs
    figures = _passes(elements, runs)
    for density in HITS_DENSITIES:
        figures += _hits(elements, density, runs)
        figures.append(_whole_update(elements, density, runs))
    figures += codec_dense.measure(
        plan.dense_shapes,
        error_elements=plan.error_elements,
        error_rounds=plan.error_rounds,
        runs=runs,
    )
    return [*figures, *_memory(elements)]


# The pass.


def _passes(elements: int, runs: int) -> list[Figure]:
    random = np.random.default_rng(0)
    parameters = random.standard_normal(elements, np.float32) * np.float32(0.01)
    # Memory that was never written to is one page of zeros for the kernel, and costs no reading.
    replica = Replica(np.full(elements, 0, np.int32))
    total = np.full(elements, 0, np.float32)
    figures = []
    for density, aim in PASS_AIMS.items():
        threshold = float(np.quantile(np.abs(parameters[:1_000_000]), 1 - density))
        multiple = multiple_of(threshold, float(replica.quantum))
        one = _pass_over(parameters, replica, multiple)
        pass_seconds, add_seconds = of_one_thread(
            one, lambda: np.add(total, parameters, out=total), runs=runs
        )
        name = f"threshold pass, {density:.2%} hits"
        figures.append(
            at_most(name, 1e3 * pass_seconds, "ms", "np.add(r, g, out=r)", 1e3 * add_seconds,
                    aim=aim, runs=runs)
        )  # fmt: skip
    return figures


def _pass_over(parameters: Float32Array, replica: Replica, multiple: int) -> Callable[[], None]:
    """Return what finds all hits."""
    nothing = np.empty(0, np.float32)
    threshold_pass = ThresholdPass(parameters, nothing, replica.values, replica.quantum)

    def look_and_take() -> None:
        for start, stop in threshold_pass.scan(0, len(replica), multiple, MAGNITUDE_MAX):
            threshold_pass.hits_in(start, stop)

    return look_and_take


# What is done with the hits.


@compiled
def plain_words(index: UInt32Array, count: Int32Array, words: Int32Array) -> None:
    """Write Deeplearning4j's format without a header: the least that encoding can be."""
    for j in range(index.size):
        words[j] = (np.int32(index[j]) + 1) * count[j]


@compiled
def plain_apply(
    values: Int32Array, parameters: Float32Array, index: UInt32Array, change: Int32Array
) -> None:
    """Do what applying has to do, with everything decoded before."""
    for j in range(index.size):
        i = index[j]
        values[i] += change[j]
        parameters[i] += np.float32(change[j]) * np.float32(2.0**-24)


def _hits(elements: int, density: float, runs: int) -> list[Figure]:
    body = b"".join(_lasting(elements, density).encode(MULTIPLE, magnitude_max=MAGNITUDE_MAX))
    update = decode(body, elements)
    hits = update.index.size
    words = np.empty(hits, np.int32)
    encode_seconds, words_seconds = of_one_thread(
        lambda: pack_update(update),
        lambda: plain_words(update.index, update.count, words),
        runs=runs,
    )
    theirs = LocalFeedback(
        np.full(elements, 0, np.float32), Replica(np.full(elements, 0, np.int32))
    )
    values, parameters = np.full(elements, 0, np.int32), np.full(elements, 0, np.float32)
    change = update.count * np.int32(MULTIPLE)
    apply_seconds, loop_seconds = of_one_thread(
        lambda: theirs.apply(body),
        lambda: plain_apply(values, parameters, update.index, change),
        runs=runs,
    )
    encode, words_written, apply, loop = (
        1e9 * seconds / hits
        for seconds in (encode_seconds, words_seconds, apply_seconds, loop_seconds)
    )
    loop_name = "plain loop, decoded before"
    figures = [
        at_most(f"decode and apply, {density:.2%} hits", apply, "ns/element", loop_name, loop,
                aim=LOOP_AIM, runs=runs)
    ]  # fmt: skip
    if density == NANOSECONDS_DENSITY:
        figures += [
            within(f"encode, {density:.2%} hits", encode, "ns/element",
                   "Deeplearning4j's words, plain loop", words_written, aim=ENCODE_AIM, runs=runs),
            within(f"decode and apply, {density:.2%} hits", apply, "ns/element", loop_name, loop,
                   aim=APPLY_AIM, runs=runs),
        ]  # fmt: skip
    return figures


def _whole_update(elements: int, density: float, runs: int) -> Figure:
    feedback = _lasting(elements, density)
    handler, residual = EncodingHandler(), feedback.residual()
    threshold = np.float32(MULTIPLE * feedback.replica.quantum)
    handler.encode(residual, threshold)  # its first one is a bitmap
    ours, dl4j = of_one_thread(
        lambda: feedback.encode(MULTIPLE, magnitude_max=MAGNITUDE_MAX),
        lambda: handler.encode(residual, threshold),
        runs=runs,
    )
    return beside(f"pass, encode and take out, {density:.2%} hits", 1e3 * ours, "ms",
                  "Deeplearning4j's algorithm in numpy", 1e3 * dl4j, runs=runs)  # fmt: skip


def _lasting(elements: int, density: float) -> LocalFeedback:
    """Return a worker with hits at random places, which stay hits through all runs."""
    random = np.random.default_rng(0)
    replica = Replica(np.full(elements, 0, np.int32))
    threshold = np.float32(MULTIPLE * replica.quantum)
    # Below half a threshold: Deeplearning4j's bitmaps send that.
    parameters = (random.random(elements, np.float32) - np.float32(0.5)) * threshold
    hits = random.random(elements, np.float32) < density
    parameters[hits] *= LASTING / np.abs(parameters[hits]) * threshold
    return LocalFeedback(parameters, replica)


# Memory.


def _memory(elements: int) -> list[Figure]:
    options = ("--elements", str(elements), "--density", str(MEMORY_DENSITY))
    with Program(codec_memory.__name__, *options) as program:
        taken = program.announcement
    return [
        within(f"memory at most, {when}", taken[measured] / elements, "bytes/parameter",
               "the replica", REPLICA_BYTES, aim=MEMORY_AIM, runs=1)
        for when, measured in (
            (f"training at {MEMORY_DENSITY:.0%} hits", "training"), ("starting", "starting")
        )
    ]  # fmt: skip
