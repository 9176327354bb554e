"""Program of every worker of the demo: ``FOLDER STEPS [DENSITY]``; alone without a density."""

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import torch

import gradwire
from gradwire.cli.demo.model import CONTEXT, loss_of, new_model
from gradwire.cli.demo.text import Batches, load_text

BATCH: Final = 4

LEARNING_RATE: Final = 2.5e-4
"""The best of a grid in steps of 2x, alone and with sharing."""

MOMENTUM_ALONE: Final = 0.9
MOMENTUM_SHARED: Final = 0.0
"""The optimizer's beta1. Changes of peers arrive late, which acts like momentum (I. Mitliagkas et
al., "Asynchrony begets momentum", 2016), so with sharing the optimizer adds none."""

COUNT_EVERY: Final = 5
"""Bytes are counted after so many steps."""


def bytes_of(stats: gradwire.SessionStats) -> int:
    """Return what this worker has sent and received: that of all workers is all there is."""
    return stats.bytes_sent + stats.bytes_received


def main() -> None:
    """Train, and write what came of it to a file."""
    folder, steps, density = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    model = new_model()
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=LEARNING_RATE,
        betas=(MOMENTUM_SHARED if density else MOMENTUM_ALONE, 0.99),
    )
    losses, counts = [], []
    with ExitStack() as stack:
        session = None
        if density:
            part = float(density[0])
            joined = gradwire.join(model, target_density=part, momentum="keep", log_level="warning")
            session = stack.enter_context(joined)
        rank = 0 if session is None else session.rank
        batches = Batches(load_text()[0], batch=BATCH, context=CONTEXT, seed=rank)
        for step in range(1, steps + 1):
            optimizer.zero_grad()
            loss = loss_of(model, *batches.next())
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.item())
            if session is not None:
                session.step()
                session.log(loss=losses[-1])
                if step % COUNT_EVERY == 0:
                    counts.append((step, bytes_of(session.stats)))
            elif step % max(steps // 10, 1) == 0:
                sys.stderr.write(f"step {step} of {steps}, loss {losses[-1]:.3f}\n")

    found: dict[str, Any] = {"state": model.state_dict(), "losses": losses}
    if session is not None:
        stats = session.stats
        found["bytes"] = [*counts, (steps, bytes_of(stats))]
        found["digest"] = session.digest()
        found["updates"] = (stats.updates_sent, stats.updates_applied)
    torch.save(found, Path(folder, "alone" if session is None else str(rank)))


if __name__ == "__main__":
    main()
