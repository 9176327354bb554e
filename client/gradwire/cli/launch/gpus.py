"""Which GPUs this machine has, and which one each worker is to see."""

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
    try:
        return [str(number) for number, _ in enumerate(driver.iterdir())]
    except OSError:
        return []


def gpu_of(rank: int, gpus: Sequence[str]) -> dict[str, str]:
    """Return the variable that lets a worker see its GPU only; workers share if there are more."""
    return {VISIBLE: gpus[rank % len(gpus)]}


def about_gpus(gpus: Sequence[str], workers: int, *, one_each: bool) -> str | None:
    """Return what to say of the GPUs; None where there is nothing to say.

    `UsageError` if workers are to see one each, and there is none.
    """
    if one_each:
        if not gpus:
            raise UsageError(
                f"--one-gpu-each: no GPU is visible, by {VISIBLE} or in {DRIVER}; leave it out to "
                "train on processors"
            )
        several = -(-workers // len(gpus))
        shared = f", up to {several} workers the same" if several > 1 else ""
        return f"each of {workers} workers sees one of the GPUs {', '.join(gpus)}{shared}"
    if len(gpus) < 2 or workers < 2:
        return None
    return (
        f"workers see all {len(gpus)} GPUs, and a worker's is cuda:LOCAL_RANK; with --one-gpu-each "
        "each sees its own only"
    )
