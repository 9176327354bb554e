"""How much memory a worker's codec takes: a process that encodes and applies, and measures itself.

``python -m benchmarks.codec_memory --elements N --density D``. It counts pages that are really
there, at their most, so buffers that nothing touches are free, and what numpy takes and gives back
counts while it is taken.
"""

import argparse
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.programs import announce
from gradwire_codecs import LocalFeedback, Replica, multiple_of

STATUS: Final = Path("/proc/self/status")
CLEAR_REFS: Final = Path("/proc/self/clear_refs")
FORGET_PEAK: Final = "5"
"""Makes the peak what is in use now: proc(5)."""

FEW: Final = 2**12
"""Elements of a first training that is not measured: what so few leave behind hides little."""

STEPS: Final = 10
CHANGE: Final = 1e-3


def main() -> None:
    """Measure, announce, end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--elements", type=int, required=True)
    parser.add_argument("--density", type=float, required=True)
    options = parser.parse_args()
    measure(FEW, options.density)  # compiled, and every library loaded
    announce(**measure(options.elements, options.density))


def measure(elements: int, density: float) -> dict[str, int]:
    """Return the bytes that a worker takes at most when it starts, and when it trains."""
    random = np.random.default_rng(0)
    # Nothing is let go of before: what comes next would take its place, and seem to need nothing.
    parameters = random.standard_normal(elements, np.float32)
    parameters *= np.float32(0.1)
    change = random.standard_normal(elements, np.float32)
    change *= np.float32(CHANGE)
    before = _memory("VmRSS")

    _forget_peak()
    feedback = LocalFeedback(parameters, Replica.from_parameters(parameters))
    starting = _memory("VmHWM") - before

    _forget_peak()
    parameters += change
    threshold = feedback.first_threshold(density)
    multiple = multiple_of(threshold, float(feedback.replica.quantum))
    for _ in range(STEPS):
        # What a worker gets from others is as large as what it sends, and comes as bytes too.
        for body in feedback.encode(multiple):
            feedback.apply(body)
        # To and fro: so about as much is sent in every step.
        np.negative(change, out=change)
        parameters += change
    return {"starting": starting, "training": _memory("VmHWM") - before}


def _memory(what: str) -> int:
    """Return bytes: of VmRSS what is in use now, of VmHWM the most since `_forget_peak`."""
    for line in STATUS.read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == what:
            return 1024 * int(value.split()[0])
    raise RuntimeError(f"{STATUS} says nothing of {what}")


def _forget_peak() -> None:
    CLEAR_REFS.write_text(FORGET_PEAK, encoding="ascii")


if __name__ == "__main__":
    main()
