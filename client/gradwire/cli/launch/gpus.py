"""Which GPUs this machine has, and what to say of them."""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Final

from gradwire.errors import UsageError

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"

DRIVER: Final = Path("/proc/driver/nvidia/gpus")
"""Has a folder for each GPU that NVIDIA's driver serves."""


def visible_gpus(environ: Mapping[str, str], driver: Path = DRIVER) -> list[str]:
    """Return the GPUs that a process would see, as ``CUDA_VISIBLE_DEVICES`` names them.

    By that variable, or else by the driver: asking torch takes seconds.
    """
    if VISIBLE in environ:
        names = map(str.strip, environ[VISIBLE].split(","))
        return list(takewhile(lambda name: name and not name.startswith("-"), names))
    return [str(number) for number, _ in enumerate(driver.glob("*"))]


def about_gpus(gpus: Sequence[str], workers: int, *, one_each: bool) -> str | None:
    """Return what to say of the GPUs; `UsageError` if each worker is to see one and none is there.

    None where there is nothing to say.
    """
    if one_each and not gpus:
        raise UsageError(
            f"--one-gpu-each: no GPU is visible, by {VISIBLE} or in {DRIVER}; leave it out to "
            "train on processors"
        )
    if one_each:
        return f"each of {workers} workers sees one of the GPUs {', '.join(gpus)}"
    if len(gpus) > 1 and workers > 1:
        return (
            f"workers see all {len(gpus)} GPUs, and a worker's is cuda:LOCAL_RANK; with "
            "--one-gpu-each each sees its own only"
        )
    return None
