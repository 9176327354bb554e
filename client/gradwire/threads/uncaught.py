"""What a script that ends with one of our errors shows: the cause first, then its own lines.

A traceback through our files tells nobody what to change, and has the cause at its end. So where
the script has set no hook of its own, an error of ours that nothing catches is shown as one line
with the cause, and the lines of the script that led there. All other errors are shown as ever; of
Ctrl-C in the middle of a wait, our own lines are left out.
"""

import sys
import traceback
from itertools import takewhile
from pathlib import Path
from types import TracebackType
from typing import Final

from gradwire.errors import GradwireError

PACKAGES: Final = frozenset(
    {"gradwire", "gradwire_codecs", "gradwire_protocol", "gradwire_udp", "gradwire_server"}
)


def show_causes_first() -> None:
    """Have our errors shown so, unless something else shows errors already."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _show


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    is_alone = error.__cause__ is None and (error.__context__ is None or error.__suppress_context__)
    is_ours = isinstance(error, GradwireError) and is_alone
    frames = traceback.extract_tb(trace)
    folders = _folders()
    theirs = list(takewhile(lambda frame: not _is_in(frame.filename, folders), frames))
    is_within = len(theirs) < len(frames)
    if not theirs or not (is_ours or (kind is KeyboardInterrupt and is_within)):
        sys.__excepthook__(kind, error, trace)
        return
    lines = [f"gradwire: {kind.__name__}: {error}" if is_ours else kind.__name__]
    lines += getattr(error, "__notes__", [])
    lines += [
        f"  at {frame.filename}, line {frame.lineno}: {frame.line}".removesuffix(": ")
        for frame in reversed(theirs)
    ]
    sys.stderr.write("\n".join(lines) + "\n")


def _folders() -> list[Path]:
    """Return the folders of our packages, as far as they are imported."""
    files = (getattr(sys.modules.get(name), "__file__", None) for name in PACKAGES)
    return [Path(file).parent for file in files if file]


def _is_in(file: str, folders: list[Path]) -> bool:
    return any(Path(file).is_relative_to(folder) for folder in folders)
