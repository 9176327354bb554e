"""What launchers leave in the environment, and what frameworks make of it."""

import os
from collections.abc import MutableMapping
from typing import Final

from gradwire.settings.settings import TORCHRUN

OTHERS: Final = (
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "ROLE_NAME",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
)
"""Variables of torchrun that mean nothing to gradwire."""


def stand_alone(environ: MutableMapping[str, str] | None = None) -> int:
    """Let frameworks take this process for the only one, and gradwire know better.

    ``gradwire run`` and torchrun tell a process its place in RANK, WORLD_SIZE, LOCAL_RANK and so
    on. Accelerate, and so transformers, takes that for an order to start DDP, and Lightning lets
    rank 0 alone print and save. This takes these variables away; what they said about the run
    stays, in GRADWIRE_RANK, GRADWIRE_WORKERS and GRADWIRE_MASTER. To be called before
    ``TrainingArguments()``, and before Lightning is imported. It can be called again.

    Parameters
    ----------
    environ : mapping, optional
        ``os.environ`` unless given.

    Returns
    -------
    int
        What LOCAL_RANK said, or 0: on a machine with several GPUs, which of them to take.
    """
    if environ is None:
        environ = os.environ
    for setting, variable in TORCHRUN.items():
        value = environ.pop(variable, None)
        if value:
            environ.setdefault(f"GRADWIRE_{setting.upper()}", value)
    for variable in OTHERS:
        environ.pop(variable, None)
    return int(environ.pop("LOCAL_RANK", "0"))
