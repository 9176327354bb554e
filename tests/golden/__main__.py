"""Write the golden files anew: ``python tests/golden``.

Each is an encoded update, ``NAME.bin``, beside what is in it, ``NAME.json``. They are written when
the format changes on purpose, and at no other time: a test compares them with what the encoder
makes of the content, and another implementation can be tested against them.
"""

import json
import sys
from pathlib import Path

import numpy as np

from gradwire_codecs import Update
from gradwire_codecs.arrays import Int32Array, UInt32Array
from gradwire_codecs.format.header import INT32_MAX, MULTIPLE_MAX
from gradwire_codecs.format.update import ELEMENTS_MAX, pack_update

FOLDER = Path(__file__).parent


def main() -> None:
    """Write all of them."""
    for name, update in contents().items():
        body = pack_update(update)
        (FOLDER / f"{name}.bin").write_bytes(body)
        content = {
            "format": body[0],
            "start": update.start,
            "stop": update.stop,
            "multiple": update.multiple,
            "index": update.index.tolist(),
            "count": update.count.tolist(),
        }
        fields = [f"  {json.dumps(field)}: {json.dumps(value)}" for field, value in content.items()]
        (FOLDER / f"{name}.json").write_text("{\n" + ",\n".join(fields) + "\n}\n", "ascii")
        sys.stdout.write(f"{name}: format {body[0]}, {len(body)} bytes\n")


def contents() -> dict[str, Update]:
    """Return what is in them, by name."""
    random = np.random.default_rng(1)

    def hits(length: int, density: float) -> UInt32Array:
        return np.flatnonzero(random.random(length) < density).astype(np.uint32)

    def signs(index: UInt32Array) -> Int32Array:
        return random.choice(np.array([-1, 1], np.int32), index.size)

    few, many, most = hits(10_000, 0.02), hits(2_000, 0.2), hits(900, 0.8)
    third, uneven = hits(300, 0.3), np.concatenate([hits(60, 0.9), 5_000 + hits(90_000, 0.002)])
    one = np.array([6], np.uint32)
    nearly_all = np.flatnonzero(np.arange(900) % 11).astype(np.uint32)
    return {
        "one_hit": _update(0, 7, 1, one, -np.ones(1, np.int32)),
        "plain": _update(0, 10_000, 1_000, few, signs(few)),
        "uneven": _update(0, 100_000, 3, uneven, signs(uneven)),
        "part": _update(5, 2_005, 2**24, many + 5, signs(many)),
        "few_magnitudes": _update(
            0, 2_000, 7, many, signs(many) * np.where(many % 10, 1, 2 + many % 7)
        ),
        "many_listed": _update(
            0, 27_000, 7, 30 * most, signs(most) * np.where(most % 6, 1, 2 + most // 200)
        ),
        "every_magnitude": _update(0, 9_000, 7, 30 * third, signs(third) * (1 + third**2 % 97)),
        "far_apart": _update(
            0,
            ELEMENTS_MAX,
            1,
            np.array([0, 1, 2, 3, 2**20, ELEMENTS_MAX - 1], np.uint32),
            np.array([1, -1, 1, 1, -1, 1], np.int32),
        ),
        "largest": _update(
            1,
            203,
            1,
            np.array([1, 202], np.uint32),
            np.array([INT32_MAX, -INT32_MAX], np.int32),
        ),
        "largest_threshold": _update(
            1,
            203,
            MULTIPLE_MAX,
            np.array([1, 200, 202], np.uint32),
            np.array([1, 127, -127], np.int32),
        ),
        "dense": _update(0, 900, 4, most, signs(most)),
        "dense_magnitudes": _update(
            3, 903, 5, most + 3, signs(most) * (1 + most.astype(np.int32) % 3)
        ),
        "bytes": _update(3, 903, 5, nearly_all + 3, signs(nearly_all) * (1 + nearly_all % 127)),
    }


def _update(start: int, stop: int, multiple: int, index: UInt32Array, count: Int32Array) -> Update:
    return Update(start, stop, multiple, index.astype(np.uint32), count.astype(np.int32))


if __name__ == "__main__":
    main()
