"""Variables by which launchers tell a process its place, hidden from frameworks."""

import os
from collections.abc import MutableMapping
from typing import Final

from gradwire.settings.settings import SRUN, TORCHRUN, launcher_variables

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
    "SLURM_NTASKS",
)
"""Variables of torchrun that gradwire does not read, and that by which Lightning knows Slurm."""


def stand_alone(environ: MutableMapping[str, str] | None = None) -> int:
    """Hide a launcher's variables from frameworks, and keep for gradwire what they say.

    ``gradwire run`` and torchrun tell a process its place in RANK, WORLD_SIZE, LOCAL_RANK and so
    on, and Slurm in SLURM_PROCID and others. Accelerate, and so transformers, then starts DDP, and
    Lightning lets rank 0 alone print and save. This function removes these variables, and copies
    what they say about the run to GRADWIRE_RANK, GRADWIRE_WORKERS and GRADWIRE_MASTER. Call it
    before ``TrainingArguments()``, and before Lightning is imported. A second call changes nothing,
    and returns 0.

    Parameters
    ----------
    environ : mapping, optional
        ``os.environ`` unless given.

    Returns
    -------
    int
        Value of LOCAL_RANK or SLURM_LOCALID, or 0 without both: the GPU to use on a machine with
        several.
    """
    if environ is None:
        environ = os.environ
    for setting, variable in launcher_variables(environ).items():
        if environ.get(variable):
            environ.setdefault(f"GRADWIRE_{setting.upper()}", environ[variable])
    for variable in (*TORCHRUN.values(), *SRUN.values(), *OTHERS):
        environ.pop(variable, None)
    further = environ.pop("SLURM_LOCALID", "0")
    return int(environ.pop("LOCAL_RANK", further))
