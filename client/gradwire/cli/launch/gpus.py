"""Which GPUs this machine has."""

from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import Final

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"

DRIVER: Final = Path("/proc/driver/nvidia/gpus")
"""Has a folder for each GPU that NVIDIA's driver serves."""

NO_GPU: Final = (
    f"--one-gpu-each: no GPU is visible, by {VISIBLE} or in {DRIVER}; leave it out to train on "
    "processors"
)


def visible_gpus(environ: Mapping[str, str], driver: Path = DRIVER) -> list[str]:
    """Return the GPUs that a process would see, as ``CUDA_VISIBLE_DEVICES`` names them.

    By that variable, or else by the driver: asking torch takes seconds.
    """
    if VISIBLE in environ:
        names = map(str.strip, environ[VISIBLE].split(","))
        return list(takewhile(lambda name: name and not name.startswith("-"), names))
    return [str(number) for number, _ in enumerate(driver.glob("*"))]
