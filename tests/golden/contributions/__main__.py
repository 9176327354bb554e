"""Write the golden files of dense contributions: ``python tests/golden/contributions``.

``NAME.json`` has the changes that a worker makes between rounds, and the encoded updates of its
contribution to each round, in hexadecimal. The residual of one round is part of the next
contribution. Write them only when `encode_dense` changes on purpose: a test compares them with what
it makes of the same changes, and another implementation can be tested against them.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

from gradwire_codecs import Replica, SharedFeedback
from gradwire_codecs.arrays import Float32Array
from gradwire_codecs.feedback.contributions import encode_dense
from gradwire_codecs.feedback.feedback import BYTES_MAX
from gradwire_codecs.format.update import BYTES_MIN

FOLDER: Final = Path(__file__).parent

Ranges: TypeAlias = list[tuple[int, int]]

EIGHT_BITS: Final = 127
FOUR_BITS: Final = 7


@dataclass(frozen=True, slots=True)
class Case:
    """What is encoded."""

    changes: list[Float32Array]
    ranges: Ranges
    magnitude_max: int
    bytes_max: int = BYTES_MAX

    def bodies(self) -> list[list[str]]:
        """Return the encoded updates of each round."""
        elements = self.ranges[-1][1]
        feedback = SharedFeedback(np.zeros(elements, np.float32), Replica.zeros(elements))
        rounds = []
        for change in self.changes:
            feedback.add_change(change)
            bodies = encode_dense(
                feedback, self.ranges, self.magnitude_max, bytes_max=self.bytes_max
            )
            rounds.append([body.hex() for body in bodies])
        return rounds


def main() -> None:
    """Write all of them."""
    for name, case in cases().items():
        bodies = case.bodies()
        content = {
            "ranges": case.ranges,
            "magnitude_max": case.magnitude_max,
            "bytes_max": case.bytes_max,
            # The shortest decimal numbers that are these float32.
            "changes": [[float(str(each)) for each in change] for change in case.changes],
            "bodies": bodies,
        }
        fields = [f"  {json.dumps(field)}: {json.dumps(value)}" for field, value in content.items()]
        (FOLDER / f"{name}.json").write_text("{\n" + ",\n".join(fields) + "\n}\n", "ascii")
        formats = [[int(body[:2]) for body in each] for each in bodies]
        sys.stdout.write(f"{name}: formats {formats}\n")


def cases() -> dict[str, Case]:
    """Return what is in them, by name."""
    random = np.random.default_rng(1)
    tensors = [(0, 60), (60, 64), (64, 200)]
    scales = np.repeat([1e-3, 2.0, 1e-5], [60, 4, 136])

    def normal(rounds: int) -> list[Float32Array]:
        return [(random.normal(0, 1, 200) * scales).astype(np.float32) for _ in range(rounds)]

    def uniform(rounds: int) -> list[Float32Array]:
        return [(random.uniform(-1, 1, 200) * scales).astype(np.float32) for _ in range(rounds)]

    outliers = [random.normal(0, 1e-2, 400).astype(np.float32) ** 3 for _ in range(2)]
    unchanged, tiny = np.zeros(200), np.zeros(200)
    unchanged[60:64] = 0.25, -0.5, 0.0, 1.0
    tiny[:60] = 2.0**-26  # a quarter of a quantum: sent after four rounds
    large = np.full(8, -100.0)
    large[1:3] = 127.5, 0.75
    return {
        "eight_bits": Case(normal(3), tensors, EIGHT_BITS),
        "four_bits": Case(normal(3), tensors, FOUR_BITS),
        "eight_bits_uniform": Case(uniform(2), tensors, EIGHT_BITS),
        "four_bits_uniform": Case(uniform(2), tensors, FOUR_BITS),
        "four_bits_outliers": Case(outliers, [(0, 400)], FOUR_BITS),
        "several_updates": Case(uniform(1), tensors, EIGHT_BITS, bytes_max=BYTES_MIN),
        "unchanged_ranges": Case([unchanged.astype(np.float32)] * 2, tensors, EIGHT_BITS),
        "below_a_quantum": Case([tiny.astype(np.float32)] * 5, tensors, EIGHT_BITS),
        "largest_threshold": Case([large.astype(np.float32), np.zeros(8, np.float32)],
                                  [(0, 8)], FOUR_BITS),
        "one_element": Case([np.full(1, -0.3, np.float32)], [(0, 1)], EIGHT_BITS),
    }  # fmt: skip


if __name__ == "__main__":
    main()
