"""Which commit a figure was measured with."""

import subprocess
from pathlib import Path
from typing import Final

UNKNOWN: Final = "unknown"
DIRTY: Final = "-dirty"


def commit_of(folder: Path) -> str:
    """Return the short hash of the commit that a folder was checked out from.

    It ends in ``-dirty`` where tracked files have been changed since. It is ``unknown`` where there
    is no checkout, or no git.
    """
    # Tags are left out: a hash names a commit by itself.
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN
    return done.stdout.strip()
