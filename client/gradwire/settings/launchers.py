"""What launchers say to the processes that they start: torchrun, srun and ``gradwire run``.

What ``gradwire run`` says to its workers takes precedence over keywords of their script. It has
started a master, or was told of one, and has keys for it. A script with the address of another one
would dial that in vain.
"""

import os
from collections.abc import Mapping, MutableMapping
from typing import Any, Final

TORCHRUN: Final = {"master": "MASTER_ADDR", "rank": "RANK", "workers": "WORLD_SIZE"}
"""Variables of torchrun, by our setting. Its MASTER_PORT belongs to another service."""

SRUN: Final = {"rank": "SLURM_PROCID", "workers": "SLURM_STEP_NUM_TASKS"}
"""Variables of Slurm's srun, by our setting. SLURM_NTASKS is that of the whole job: a script that
starts a single process has it as well."""

STARTED_HERE: Final = "LOCAL_WORLD_SIZE"
"""What torchrun and ``gradwire run`` tell their processes. Where srun has started one of these, its
variables are about launchers, and not about workers."""

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

LAUNCHED: Final = "GRADWIRE_LAUNCHED"
"""Set by ``gradwire run`` for its workers."""

VARIABLES: Final = {"master": "GRADWIRE_MASTER", "key_file": "GRADWIRE_KEY_FILE"}
"""By setting: the variable that the launcher sets."""


def launcher_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return, by setting, the variables in which a launcher says it; the nearest one's first."""
    further = {} if environ.get(STARTED_HERE) else SRUN
    return further | {
        name: variable for name, variable in TORCHRUN.items() if environ.get(variable)
    }


def launched(
    keywords: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[dict[str, Any], str | None]:
    """Return keywords without what a launcher has said otherwise, and a line about that, or None.

    A script that passes a `key` means the master that it has the key of, and keeps all it says.
    """
    kept = dict(keywords)
    if not environ.get(LAUNCHED) or kept.get("key") is not None:
        return kept, None
    overruled = [
        f"{name}={given!s}"
        for name, variable in VARIABLES.items()
        if (given := kept.get(name)) is not None
        and environ.get(variable)
        and str(given) != environ[variable]
    ]
    for name, variable in VARIABLES.items():
        if environ.get(variable):
            kept.pop(name, None)
    if not overruled:
        return kept, None
    said = {each: environ[each] for each in VARIABLES.values() if environ.get(each)}
    return kept, (
        f"{' and '.join(overruled)}: gradwire run has started this script, so what it says counts, "
        f"{' and '.join(f'{variable}={value}' for variable, value in said.items())}. Unset "
        f"{', '.join([LAUNCHED, *said])} to join the other one"
    )


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
