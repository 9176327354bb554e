"""The codec's speed on a GPU, 14.6 million parameters; there are no figures where there is none.

The threshold pass stands beside adding two vectors of the same size in the GPU's memory. Encoding
and applying include what crosses to the host and back, and stand beside the same on the CPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from benchmarks.figures import Figure, alternately, at_most, beside
from gradwire_codecs import LocalFeedback, Replica, multiple_of
from gradwire_codecs.arrays import Float32Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    elements: int = 14_600_000
    densities: Sequence[float] = (0.0001, 0.001, 0.01, 0.05)
    """Parts of the elements that are hits."""
    pass_runs: int = 25
    runs: int = 9


FULL: Final = Plan()
QUICK: Final = Plan(elements=2**17, densities=(0.01,), pass_runs=1, runs=1)

DEVICE: Final = torch.device("cuda")
PASS_AIM: Final = 1.5


def run(plan: Plan) -> list[Figure]:
    """Measure, where there is a GPU."""
    if not torch.cuda.is_available():
        print("codec-gpu: no GPU here, so there is nothing to measure")
        return []
    print(f"codec-gpu: {torch.cuda.get_device_name()}")
    random = np.random.default_rng(0)
    residual = (random.standard_normal(plan.elements) * 0.01).astype(np.float32)
    figures = []
    for density in plan.densities:
        threshold = float(np.quantile(np.abs(residual[:1_000_000]), 1 - density))
        figures += _measure(residual, density, threshold, plan)
    return figures


def _measure(residual: Float32Array, density: float, threshold: float, plan: Plan) -> list[Figure]:
    # Where it is imported Triton compiles for the GPU, or finds none.
    from gradwire_codecs.cuda import DeviceLocalFeedback
    from gradwire_codecs.cuda.streams import SideStream
    from gradwire_codecs.cuda.threshold_pass import DevicePass

    n, runs = plan.elements, plan.runs
    parameters = torch.tensor(residual, device=DEVICE)
    replica = Replica.zeros(n)
    multiple = multiple_of(threshold, float(replica.quantum))
    stream = SideStream(DEVICE)
    values = torch.zeros(n, dtype=torch.int32, device=DEVICE)
    looking = DevicePass(parameters, None, values, float(replica.quantum), stream)
    total = torch.zeros_like(parameters)

    def look() -> None:
        with stream.turn():
            looking.scan(0, n, multiple, 1)

    def add() -> None:
        torch.add(total, parameters, out=total)
        torch.cuda.synchronize()

    pass_seconds, add_seconds = alternately(look, add, runs=plan.pass_runs)

    on_host = LocalFeedback(residual.copy(), replica)
    on_device = DeviceLocalFeedback(parameters, Replica.zeros(n))
    host_target = LocalFeedback(np.zeros(n, np.float32), Replica.zeros(n))
    device_target = DeviceLocalFeedback(torch.zeros_like(parameters), Replica.zeros(n))
    bodies = LocalFeedback(residual.copy(), Replica.zeros(n)).encode(multiple, magnitude_max=1)
    back = -_change(bodies, n)

    def encode_on_device() -> None:
        assert on_device.encode(multiple, magnitude_max=1) == bodies, "not what the CPU encodes"

    def encode_on_host() -> None:
        on_host.encode(multiple, magnitude_max=1)

    def put_back() -> None:
        """Return what was encoded to the residuals, where the next encoding finds it."""
        on_device.correct_replica(back)
        on_host.correct_replica(back)
        torch.cuda.synchronize()

    def apply_on_device() -> None:
        for body in bodies:
            device_target.apply(body)
        torch.cuda.synchronize()

    def apply_on_host() -> None:
        for body in bodies:
            host_target.apply(body)

    encode_seconds, host_encode_seconds, _, apply_seconds, host_apply_seconds = alternately(
        encode_on_device, encode_on_host, put_back, apply_on_device, apply_on_host, runs=runs
    )
    hits = f"{density:.2%} hits"
    return [
        at_most(f"GPU threshold pass, {hits}", 1e6 * pass_seconds, "us", "torch.add, out=",
                1e6 * add_seconds, aim=PASS_AIM, runs=plan.pass_runs),
        beside(f"GPU encode, {hits}", 1e3 * encode_seconds, "ms", "on the CPU",
               1e3 * host_encode_seconds, runs=runs),
        beside(f"GPU apply, {hits}", 1e3 * apply_seconds, "ms", "on the CPU",
               1e3 * host_apply_seconds, runs=runs),
    ]  # fmt: skip


def _change(bodies: list[bytes], n: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Return what updates change, element by element."""
    replica = Replica.zeros(n)
    for body in bodies:
        replica.apply(body)
    return replica.values.reshape(n)
