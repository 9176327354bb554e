"""A worker that trains until it is told to finish, and keeps an account.

``python chaos_worker.py OPTIONS``, where OPTIONS is JSON: ``master``, ``elements``,
``pace_seconds``, ``account`` (a file), ``settings`` of `gradwire.join`. A line on stdin tells it to
finish; when stdin ends first, it ends at once, because who has started it is gone.

The account is a file of JSON lines, each written out before the next step: what it began with, what
it has done after every step, and what it ended with. Whoever reads it knows of a worker that was
killed all but its last step.
"""

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any, Final, TextIO

import numpy as np
import torch

import gradwire
from gradwire_codecs.arrays import Float32Array
from gradwire_protocol.messages.modes.mode import parse_mode

CHANGE: Final = 1e-3


def main() -> None:
    """Train, and keep the account."""
    options = json.loads(sys.argv[1])
    told = threading.Event()
    threading.Thread(target=_listen, args=(told,), daemon=True).start()
    with Path(options["account"]).open("w", encoding="utf-8") as account:
        try:
            _train(options, told, account)
        except gradwire.GradwireError as error:
            _write(account, error=f"{type(error).__name__}: {error}")
            sys.exit(1)


def _train(options: dict[str, Any], told: threading.Event, account: TextIO) -> None:
    random = np.random.default_rng()
    parameters = random.normal(0, 0.1, options["elements"]).astype(np.float32)
    settings = {"finish_residual": "send", **options["settings"]}  # so that nothing may be missing
    mode = parse_mode(settings["mode"])
    optimizer = _adam(parameters) if mode.optimizer_state is not None else None
    target = parameters if optimizer is None else optimizer.param_groups[0]["params"]
    session = gradwire.join(target, optimizer=optimizer, master=options["master"], **settings)
    versions = session.state_dict()["versions"]
    _write(account, rank=session.rank, versions=versions)
    while not told.wait(options["pace_seconds"]):
        change = random.normal(0, CHANGE, parameters.size).astype(np.float32)
        if mode.optimizer is not None:
            session.push(change)
            session.pull()
        else:
            if optimizer is None:
                parameters += change
            else:
                target[0].grad = torch.from_numpy(change)
                optimizer.step()
            session.step()
        _write(account, **_done(session))
    session.finish()
    done = _done(session)
    _write(account, **done, digest=session.digest(), versions=session.state_dict()["versions"])


def _adam(parameters: Float32Array) -> torch.optim.Optimizer:
    return torch.optim.AdamW([torch.nn.Parameter(torch.from_numpy(parameters))], lr=CHANGE)


def _done(session: gradwire.Session) -> dict[str, Any]:
    stats = session.stats
    return {
        "steps": stats.steps,
        "sent": stats.updates_sent,
        "stable": stats.updates_stable,
        "applied": stats.updates_applied,
        "reconnections": stats.reconnections,
        "rebases": stats.rebases,
    }


def _write(account: TextIO, **values: object) -> None:
    account.write(json.dumps(values) + "\n")
    account.flush()


def _listen(told: threading.Event) -> None:
    if not sys.stdin.readline():
        os._exit(1)
    told.set()


if __name__ == "__main__":
    main()
