"""`Access`: the driver's way to the master, of its own process or another, and what it does there.

The driver founds the run with the model's first parameters, and leaves it. It gives orders over
HTTP, and reads the parameters as an observer.
"""

import logging
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import torch
from pyspark.sql import SparkSession
from torch import nn

import gradwire
from gradwire.cli.master_http import HTTP_PORT, MasterHttp, read_token
from gradwire.spark.recipe import Recipe
from gradwire.spark.training.addresses import DriverAddress, driver_address
from gradwire.spark.training.beginning import restored
from gradwire.spark.training.plan import Initial, Plan
from gradwire.spark.training.worker import WORK
from gradwire_protocol.crypto.keys import Role, RunKey
from gradwire_protocol.messages.modes.mode import parse_mode
from gradwire_udp import show_address, split_address
from gradwire_udp.files.keys import read_run_keys

logger = logging.getLogger("gradwire.spark")

IDLE_SECONDS: Final = 5.0
"""A worker whose executor was lost is given up after this time, and what it held goes to others."""

WORKERS_SPARE: Final = 16
"""Workers beyond those that were asked for: retried tasks and twins join before others are gone."""

RESUMED_RUN: Final = "spark"
"""Name of a run with checkpoints: the driver of another attempt goes on with it."""


@dataclass(frozen=True, slots=True)
class Access:
    """How the driver and its workers reach the master."""

    address: str
    """For the driver."""
    advertised: str
    """For executors."""
    run_key: RunKey | None
    run: str
    http: MasterHttp
    """For orders."""
    mode: str | None = None
    """Of the run that the driver founds."""

    def found(self, model: nn.Module, recipe: Recipe, initial: Initial | None = None) -> None:
        """Found the run with the model's parameters, and leave it.

        Where the run averages the state of optimizers, it begins with that of `initial`, or that
        of a new one.
        """
        mode = None if self.mode is None else parse_mode(self.mode)
        has_state = mode is not None and mode.optimizer_state is not None
        optimizer = recipe.make_optimizer(model) if has_state else None
        if optimizer is not None and initial is not None and initial.optimizer is not None:
            restored(optimizer, initial.optimizer)
        self.join(model, Role.WORKER, optimizer).leave()
        # It changes nothing. Who may not give orders is to hear it now, not after the training.
        self.order("resume-items")

    def join(
        self, model: nn.Module, role: Role, optimizer: torch.optim.Optimizer | None = None
    ) -> gradwire.Session:
        """Join from the driver."""
        return gradwire.join(
            model,
            optimizer=optimizer,
            master=self.address,
            key=self._key(role),
            run=self.run,
            log_level="warning",
            workers=1,
            start_timeout_seconds=0.0,
            mode=self.mode,
        )

    def read(self, model: nn.Module) -> None:
        """Give a module the parameters and buffers that the run has now."""
        self.join(model, Role.OBSERVER).close("it has read the parameters")

    def order(self, action: str, name: str = "") -> str:
        """Give an order about the run; return the answer."""
        return self.http.order(action, name, self.run)

    def ledger(self) -> dict[str, Any]:
        """Return what the master says of the items; empty while no worker has asked for one."""
        runs = self.http.overview()["runs"]
        works = [w for run in runs if run["name"] == self.run for w in run["works"]]
        return next((work for work in works if work["name"] == WORK), {})

    def issuing_text(self) -> str | None:
        """Return the key for workers as text."""
        return None if self.run_key is None else self.run_key.issuing_key(Role.WORKER).format()

    def _key(self, role: Role) -> Any:
        if self.run_key is None:
            return None
        return self.run_key.worker_key(f"driver-{os.urandom(3).hex()}", role)


def starting(spark: SparkSession, plan: Plan, stack: ExitStack) -> Future[Access]:
    """Have a master start on a thread, and end with the stack; return the way to it.

    Raises
    ------
    UsageError
        If this machine has no address in the plan's network.
    """
    address = None if plan.master is not None else driver_address(spark, plan.network_mask)
    pool = stack.enter_context(ThreadPoolExecutor(1, "gradwire-spark-master"))
    # The stack waits for the pool, and only then ends what that has entered meanwhile.
    return pool.submit(stack.enter_context, access_to_master(plan, address))


@contextmanager
def access_to_master(plan: Plan, address: DriverAddress | None) -> Iterator[Access]:
    """Yield the way to a master: one at an address of the driver's, which ends with the block.

    Without an address it is the one that the plan names.
    """
    run = f"spark-{uuid4().hex[:12]}" if plan.checkpoint is None else RESUMED_RUN
    if address is None:
        assert plan.master is not None
        keys = read_run_keys(Path(plan.key_file)) if plan.key_file is not None else [None]
        http = MasterHttp(_http_of(plan), read_token(plan.token_file))
        http.overview()  # it says at once where nobody listens
        yield Access(plan.master, plan.master, keys[0], run, http, plan.settings.get("mode"))
        return
    options = ["--workers-max", str(plan.workers + WORKERS_SPARE)]
    options += ["--idle-timeout-seconds", f"{IDLE_SECONDS:g}"]
    if plan.checkpoint is not None:
        options += ["--checkpoint", plan.checkpoint, "--resume", "auto"]
    listen = show_address((address.listen, plan.port))
    with gradwire.local_master(listen=listen, http="127.0.0.1:0", options=options) as master:
        assert master.http is not None
        http = MasterHttp(master.http, master.http_token)
        logger.info("watch the training on this machine: %s/", http.url)
        advertised = show_address((address.advertised, split_address(master.address)[1]))
        mode = plan.settings.get("mode")
        yield Access(master.address, advertised, master.run_key, run, http, mode)


def _http_of(plan: Plan) -> str:
    """Return where the named master serves HTTP: by default, at its usual port there."""
    assert plan.master is not None
    if plan.master_http is not None:
        return plan.master_http
    return show_address((split_address(plan.master)[0], HTTP_PORT))
