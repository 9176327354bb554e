"""One process that trains with the samples of all workers: what synchronous training computes."""

from collections.abc import Sequence
from time import process_time

import torch

from benchmarks.convergence.outcome import Outcome, evaluated_after
from benchmarks.convergence.tasks import Task, samples_of


def train(task: Task, rate: float, seed: int, workers: int) -> Outcome:
    """Train with so many workers' samples in each step."""
    model = task.new_model(seed)
    optimizer = task.make_optimizer(model, rate)
    schedule = task.make_schedule(optimizer)
    random = [samples_of(seed, rank) for rank in range(workers)]
    losses: list[float] = []
    points: Sequence[int] = evaluated_after(task.steps)
    seconds = 0.0
    for step in range(1, task.steps + 1):
        began = process_time()
        inputs, targets = zip(*map(task.draw, random), strict=True)
        optimizer.zero_grad()
        loss = task.loss_of(model, (torch.cat(inputs), torch.cat(targets)))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        seconds += process_time() - began
        if step in points:
            losses.append(task.evaluate(model))
    return Outcome(steps=points, losses=losses, megabytes=0.0, seconds=seconds)
