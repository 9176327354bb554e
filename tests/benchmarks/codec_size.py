"""The size of updates, beside the entropy of what they say and beside other formats.

The entropy is that of the positions, each as likely as any other, and a bit per sign; it knows
nothing of magnitudes. Every byte of an update counts, its header too.

Three inputs. In the first, elements at random positions are to be sent, once the threshold each.
The second is a step of a model of 14.6 million parameters: what Deeplearning4j, top-k and the hooks
of DistributedDataParallel make of tensors of these shapes. Not all send the same of it: PowerSGD a
matrix of low rank, top-k the values themselves. The third is the demo's model, really trained. Its
updates are weighted in two ways. In the mean of their ratios to their entropies, each counts like
any other. In all bits over all entropies, each bit does: then a third of the weight is that of the
first round or two, while the policy looks for its threshold, and most elements and their magnitudes
are sent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log2, prod
from pathlib import Path
from statistics import fmean
from typing import Final

import numpy as np

from benchmarks import demo_updates
from benchmarks.demo_updates import Recorded, demo_shapes, record
from benchmarks.figures import Figure, at_most, beside, within
from benchmarks.models import GPT_SHAPES
from benchmarks.pictures import OURS, Curves, draw_curves
from benchmarks.rivals import dl4j
from benchmarks.rivals.ddp_hooks import Shapes, fp16_bytes, power_sgd_bytes
from benchmarks.rivals.floats import TOP_K_HIT_BYTES, qsgd_bytes
from gradwire.cli.demo.command import WORKERS
from gradwire_codecs import LocalFeedback, Replica, encoded_hits
from gradwire_codecs.arrays import Float32Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    shapes: Shapes = GPT_SHAPES
    """Of the tensors of the model."""
    densities: Sequence[float] = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.05, 0.1, 0.2)
    """Parts of the elements that are hits."""
    demo_workers: int = WORKERS
    demo_steps: int = demo_updates.STEPS


FULL: Final = Plan()
QUICK: Final = Plan(
    shapes=((200, 100), (100,)), densities=(0.001, 0.01), demo_workers=2, demo_steps=2
)

AIMED_DENSITIES: Final = (0.0003, 0.05)
"""From the first to the last one, an aim is set."""
DENSITIES_BESIDE: Final = (0.001, 0.01)
"""Those that stand beside what does not depend on density."""

ENTROPY_AIM: Final = 1.015
RECORDED_AIM: Final = 0.97
KILOBYTES_AIM: Final = {0.001: 23.0}

MULTIPLE: Final = 2**14
"""The threshold in quanta; that of the residual is 1.5 of it where something is to be sent."""

KILOBYTE: Final = 1e3
BOUND: Final = "entropy of positions + signs"
DL4J: Final = "Deeplearning4j's format"
TOP_K: Final = "top-k, float32 values"
DENSE: Final = "dense float32"
RANKS: Final = (1, 2, 4)


def run(plan: Plan) -> list[Figure]:
    """Measure."""
    return [
        *of_uniform_positions(plan.shapes, plan.densities),
        *of_the_demo(plan.demo_workers, plan.demo_steps),
    ]


def entropy_bits(elements: int, hits: int) -> float:
    """Return the least that positions and signs of so many hits take on average, in bits."""
    p = hits / elements
    if p in (0, 1):
        return hits
    return hits - elements * (p * log2(p) + (1 - p) * log2(1 - p))


def of_uniform_positions(shapes: Shapes, densities: Sequence[float]) -> list[Figure]:
    """Measure what updates of a model of these shapes take."""
    elements = sum(map(prod, shapes))
    fixed = _fixed_sizes(shapes)
    return [
        figure
        for density in densities
        for figure in _of_density(
            elements, density, fixed if density in DENSITIES_BESIDE else {}
        )
    ]  # fmt: skip


def _of_density(elements: int, density: float, fixed: Mapping[str, int]) -> list[Figure]:
    residual = _residual(elements, density)
    feedback = LocalFeedback(residual.copy(), Replica.zeros(elements))
    threshold = np.float32(MULTIPLE * feedback.replica.quantum)
    encoded = feedback.encode(MULTIPLE)
    size, hits = sum(map(len, encoded)), sum(map(encoded_hits, encoded))
    bound = entropy_bits(elements, hits)
    name = f"bits per hit, {density:.2%} of {elements / 1e6:.3g} M"
    low, high = AIMED_DENSITIES
    entropy = (
        at_most(name, 8 * size / hits, "bit", BOUND, bound / hits, aim=ENTROPY_AIM, runs=1)
        if low <= density <= high
        else beside(name, 8 * size / hits, "bit", BOUND, bound / hits, runs=1)
    )
    rivals = {
        DL4J: dl4j.encode(residual.copy(), threshold).nbytes,
        TOP_K: TOP_K_HIT_BYTES * hits,
        **fixed,
    }
    return [
        entropy,
        *_beside(size_name(elements, density), size, rivals, KILOBYTES_AIM.get(density)),
    ]


def size_name(elements: int, density: float) -> str:
    """Return what the size of an update is called."""
    return f"update of {elements / 1e6:.3g} M, {density:.2%}"


def _beside(name: str, size: float, rivals: Mapping[str, float], aim: float | None) -> list[Figure]:
    """Return the size of an update beside what others take; the aim is printed once."""
    figures = []
    for i, (rival, rival_size) in enumerate(rivals.items()):
        value, rival_value = size / KILOBYTE, rival_size / KILOBYTE
        figures.append(
            within(name, value, "KB", rival, rival_value, aim=aim, runs=1)
            if aim is not None and i == 0
            else beside(name, value, "KB", rival, rival_value, runs=1)
        )
    return figures


def _residual(elements: int, density: float) -> Float32Array:
    """Return a residual of which a part reaches `MULTIPLE` quanta, at random places."""
    random = np.random.default_rng(0)
    residual = np.zeros(elements, np.float32)
    hits = random.random(elements, np.float32) < density
    value = np.float32(1.5 * MULTIPLE * Replica.zeros(1).quantum)
    residual[hits] = random.choice([-value, value], int(np.count_nonzero(hits)))
    return residual


def _fixed_sizes(shapes: Shapes) -> dict[str, int]:
    """Return what others send of a step whatever its gradient is, in bytes."""
    elements = sum(map(prod, shapes))
    return {
        DENSE: 4 * elements,
        "DDP's fp16 hook": fp16_bytes(shapes),
        "8 bits (QSGD)": qsgd_bytes(elements),
        **{power_sgd_name(rank): power_sgd_bytes(shapes, rank) for rank in RANKS},
    }


def power_sgd_name(rank: int) -> str:
    """Return what the hook with this rank is called."""
    return f"DDP's PowerSGD hook, rank {rank}"


def of_the_demo(workers: int, steps: int) -> list[Figure]:
    """Train the demo's model, and measure what its updates take."""
    shapes = demo_shapes()
    elements = sum(map(prod, shapes))
    updates = record(workers, steps)
    size, hits = sum(u.size for u in updates), sum(u.hits for u in updates)
    bounds = [entropy_bits(elements, u.hits) for u in updates]
    count = len(updates)
    of_each = fmean(8 * u.size / b for u, b in zip(updates, bounds, strict=True))
    return [
        at_most(
            f"mean of {count} updates of the demo",
            of_each,
            "x",
            f"{BOUND} of each",
            1.0,
            aim=RECORDED_AIM,
            runs=count,
        ),
        at_most(
            "the same, all bits together",
            8 * size / hits,
            "bit",
            BOUND,
            sum(bounds) / hits,
            aim=RECORDED_AIM,
            runs=count,
        ),
        *_beside("mean update of the demo", size / count, _demo_rivals(updates, shapes), None),
    ]


def _demo_rivals(updates: Sequence[Recorded], shapes: Shapes) -> dict[str, float]:
    return {
        DL4J: fmean(update.dl4j_bytes for update in updates),
        TOP_K: TOP_K_HIT_BYTES * fmean(update.hits for update in updates),
        **_fixed_sizes(shapes),
    }


def draw(figures: list[Figure], folder: Path, plan: Plan) -> None:
    """Draw sizes against density."""
    elements, densities = sum(map(prod, plan.shapes)), plan.densities
    of_rival = {(figure.figure, figure.rival): figure for figure in figures}
    names = [size_name(elements, density) for density in densities]
    beside_fixed = size_name(elements, DENSITIES_BESIDE[0])
    fixed = ["8 bits (QSGD)", "DDP's fp16 hook", DENSE, *map(power_sgd_name, RANKS)]
    draw_curves(
        Curves(
            title=f"What one worker sends per step of {elements / 1e6:g} M parameters",
            x_label="elements sent",
            y_label="size of the update",
            x=densities,
            series={OURS: [KILOBYTE * of_rival[name, DL4J].value for name in names]}
            | {
                rival: [KILOBYTE * of_rival[name, rival].rival_value for name in names]
                for rival in (DL4J, TOP_K)
            },
            levels={rival: KILOBYTE * of_rival[beside_fixed, rival].rival_value for rival in fixed},
            bound=(BOUND, [entropy_bits(elements, round(d * elements)) / 8 for d in densities]),
        ),
        folder / "update-size.png",
    )
