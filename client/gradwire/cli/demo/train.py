"""Program of every worker of the demo: a training loop, with gradwire's two lines.

It writes a JSON object per line to stdout, for the demo's display and report.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import torch

import gradwire
from gradwire.cli.demo.model import CONTEXT, loss_of, new_model
from gradwire.cli.demo.text import Batches, load_text

BATCH: Final = 4

LEARNING_RATE_ALONE: Final = 2.5e-4
LEARNING_RATE_SHARED: Final = 2.5e-4
"""Both the best of a grid in steps of 2x."""

MOMENTUM_ALONE: Final = 0.9
MOMENTUM_SHARED: Final = 0.0
"""The optimizer's beta1. Changes of peers arrive late, and delay acts like momentum (I. Mitliagkas
et al., "Asynchrony begets momentum", 2016), so with sharing the optimizer adds none."""

REPORT_EVERY: Final = 5


def say(event: str, **fields: Any) -> None:
    """Print an event as JSON."""
    sys.stdout.write(json.dumps({"event": event, "time": time.time(), **fields}) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description="One worker of gradwire's demo.")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--density", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--save", type=Path, required=True, help="where the parameters go")
    parser.add_argument("--alone", action="store_true", help="train without gradwire")
    arguments = parser.parse_args()

    training_text, _ = load_text()
    batches = Batches(training_text, batch=BATCH, context=CONTEXT, seed=arguments.seed)
    model = new_model()
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=LEARNING_RATE_ALONE if arguments.alone else LEARNING_RATE_SHARED,
        betas=(MOMENTUM_ALONE if arguments.alone else MOMENTUM_SHARED, 0.99),
    )

    with membership(model, arguments) as session:
        losses = []
        for step in range(1, arguments.steps + 1):
            optimizer.zero_grad()
            loss = loss_of(model, *batches.next())
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if session is not None:
                session.step()

            losses.append(loss.item())
            if step % REPORT_EVERY == 0 or step == arguments.steps:
                stats = None if session is None else asdict(session.stats)
                say("progress", step=step, losses=losses, stats=stats)
                losses = []

    torch.save(model.state_dict(), arguments.save)
    if session is not None:
        say("finished", stats=asdict(session.stats), digest=session.digest())


@contextmanager
def membership(
    model: torch.nn.Module, arguments: argparse.Namespace
) -> Iterator[gradwire.Session | None]:
    """Join the run, and finish it at the end; do neither for a worker alone."""
    if arguments.alone:
        yield None
        return
    with gradwire.join(model, target_density=arguments.density, quiet=True) as session:
        say("joined", rank=session.rank)
        yield session


if __name__ == "__main__":
    main()
