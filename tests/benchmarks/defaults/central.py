"""A script's optimizer, moved to the master: the mode ``central`` with the same settings."""

import torch

from benchmarks.defaults.schedules import cosine, warm_up
from benchmarks.defaults.tasks import Task
from gradwire_protocol.messages.modes.mode import Mode, new_mode, parse_mode

SETTINGS = ("momentum", "nesterov", "eps", "weight_decay")
"""Of torch's optimizers; what the master's does not have is left out."""


def at_the_master(method: str, task: Task, optimizer: torch.optim.Optimizer, workers: int) -> Mode:
    """Return the mode that a method names, with the task's optimizer and schedule.

    The master makes more steps than a worker where few gradients make one. Weight decay is that of
    the first group, for all parameters.
    """
    named = parse_mode(method)
    group = optimizer.param_groups[0]
    said = {key: group[key] for key in SETTINGS if group.get(key)}
    if "betas" in group:
        said["beta1"], said["beta2"] = group["betas"]
    if "alpha" in group:
        said["beta2"] = group["alpha"]
    steps = task.steps * workers // named.gradients_per_update
    if task.schedule is cosine:
        said |= {"schedule": "cosine", "steps": steps}
    elif task.schedule is warm_up:
        said |= {"warm_up": steps // 10}
    return new_mode(
        named.name,
        optimizer=type(optimizer).__name__.lower(),
        lr=optimizer.defaults["lr"],
        gradients_per_update=named.gradients_per_update,
        staleness=named.staleness,
        bits=named.bits,
        **said,
    )
