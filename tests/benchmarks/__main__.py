"""Benchmarks: ``python tests/benchmarks NAME [--json FILE]``; NAME ``all`` runs every one.

Each prints a table. Every figure stands beside a floor or a rival that was measured alternately
with it, in the same run: absolute times differ between machines and hours, ratios hold. An aim that
is missed is printed as missed. With ``--json``, one object per figure and line; with
``--pictures``, a drawing of the ratios of each benchmark; with ``--curves``, the drawings that the
documentation shows.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import (
    attack,
    codec,
    codec_gpu,
    codec_size,
    estimate,
    latency,
    lossy,
    overhead,
    recovery,
    relay,
    sealed,
    slowlink,
    tensor_thresholds,
    transport,
)
from benchmarks.convergence import comparison as convergence
from benchmarks.convergence import drawing
from benchmarks.figures import Figure, draw, machine, print_table

BENCHMARKS = {
    "attack": attack.run,
    "codec": codec.run,
    "codec-gpu": codec_gpu.run,
    "codec-size": codec_size.run,
    "convergence": convergence.run,
    "estimate": estimate.run,
    "latency": latency.run,
    "lossy": lossy.run,
    "overhead": overhead.run,
    "recovery": recovery.run,
    "relay": relay.run,
    "sealed": sealed.run,
    "slowlink": slowlink.run,
    "tensor-thresholds": tensor_thresholds.run,
    "transport": transport.run,
}

CURVES = {
    "codec-size": codec_size.draw,
    "convergence": drawing.draw,
    "lossy": lossy.draw,
    "relay": relay.draw,
    "slowlink": slowlink.draw,
    "tensor-thresholds": tensor_thresholds.draw,
}
"""Of these benchmarks there are drawings for the documentation."""


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(prog="python tests/benchmarks", description=__doc__)
    parser.add_argument("name", choices=["all", *BENCHMARKS], metavar="NAME")
    parser.add_argument("--json", type=Path, help="also write the figures here, one per line")
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="draw the ratios there")
    parser.add_argument("--curves", type=Path, metavar="FOLDER", help="draw rates as lines there")
    arguments = parser.parse_args()
    for folder in filter(None, (arguments.pictures, arguments.curves)):
        folder.mkdir(parents=True, exist_ok=True)

    names = list(BENCHMARKS) if arguments.name == "all" else [arguments.name]
    print(machine())
    figures: list[Figure] = []
    for name in names:
        print(f"\n{name}: measuring", file=sys.stderr, flush=True)
        measured = BENCHMARKS[name]()
        if measured:
            print_table(name, measured)
        figures += measured
        if arguments.pictures is not None and measured:
            draw(name, measured, arguments.pictures / f"{name}.png")
        if arguments.curves is not None and name in CURVES and measured:
            CURVES[name](measured, arguments.curves)
    if arguments.json is not None:
        arguments.json.write_text("".join(f.to_json() + "\n" for f in figures), encoding="utf-8")


if __name__ == "__main__":
    main()
