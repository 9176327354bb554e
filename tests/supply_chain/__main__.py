"""What we did not write: ``python tests/supply_chain pins``, or ``audit``.

``pins`` writes ``requirements/*.txt`` from ``constraints.txt`` and the hashes that PyPI has;
``audit`` looks for known vulnerabilities of what is pinned. `supply_chain.audit` has the exit
statuses.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from supply_chain import audit, pins

COMMANDS = {"audit": audit.main, "pins": pins.main}


def main() -> int:
    """Do what was asked for."""
    parser = argparse.ArgumentParser(prog="python tests/supply_chain", description=__doc__)
    parser.add_argument("command", choices=COMMANDS)
    return COMMANDS[parser.parse_args().command]()


if __name__ == "__main__":
    sys.exit(main())
