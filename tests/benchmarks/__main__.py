"""``python tests/benchmarks``: see `benchmarks.command`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.command import main
from benchmarks.record import FIGURES

if __name__ == "__main__":
    sys.exit(main(kept=FIGURES))
