"""One training of `time-to-loss`: workers and master, each on a machine of its own.

All machines share one link, in all directions and whoever sends. Its bytes are those of the
machines' devices, headers and acknowledgements included, each packet once.
"""

import json
import os
import sys
from contextlib import ExitStack
from dataclasses import asdict
from tempfile import TemporaryDirectory
from typing import Any, Final, Self

from benchmarks.masters import Master
from benchmarks.programs import Program
from benchmarks.time_to_loss.cells import Cell, Outcome
from benchmarks.time_to_loss.crew import Order
from benchmarks.time_to_loss.methods import torchft_path
from support.emulator import emulated_network
from support.link import Link
from support.namespaces import DEVICE

DELAY_SECONDS: Final = 0.010
"""Of the link, in one direction."""

POINTS: Final = 30
"""How often the model is looked at."""


class Crew:
    """What trains one cell after the other, for as long as the block lasts."""

    def __init__(self) -> None:
        self._program: Program | None = None
        """The process that makes workers, once there is one."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._program is not None:
            self._program.__exit__()
            self._program = None

    def train(self, cell: Cell) -> Outcome:
        """Train as a cell says; return what came of it.

        Raises
        ------
        RuntimeError
            If a worker fails, or says nothing: with its last words.
        """
        link = Link(rate=cell.link * 1e6, delay=DELAY_SECONDS)
        with ExitStack() as stack:
            machines = stack.enter_context(emulated_network(link, cell.workers + 1))
            folder = stack.enter_context(TemporaryDirectory())
            environ, pids = {"GLOO_SOCKET_IFNAME": DEVICE}, []
            *places, last = machines
            if cell.is_ours:
                listen = f"{last.address}:0"
                master = stack.enter_context(
                    Master(keys=cell.keys, listen=listen, prefix=last.prefix)
                )
                environ |= master.environ()
                pids.append(master.pid)
            order = Order(
                cell=cell, machines=places, environ=environ, folder=folder, pids=pids, points=POINTS
            )
            carried, said = self._ask(order)
        return outcome_of(cell, carried, said)

    def _ask(self, order: Order) -> tuple[list[int], dict[str, Any]]:
        """Return the bytes that the link had carried at each time, and what else was said."""
        if self._program is None:
            self._program = _started()
        carried: list[int] = []
        try:
            self._program.tell(json.dumps(asdict(order)))
            while "carried" in (said := self._program.read()):
                carried.append(said["carried"])
        except BaseException:
            self.__exit__()  # the next order would get what is left of this answer
            raise
        return carried, said


def outcome_of(cell: Cell, carried: list[int], said: dict[str, Any]) -> Outcome:
    """Return what came of a training, from what its crew has said."""
    if "error" in said:
        raise RuntimeError(said["error"])
    return Outcome(
        seconds=[cell.seconds * (point + 1) / POINTS for point in range(POINTS)],
        megabytes=[(each - carried[0]) / 1e6 for each in carried[1:]],
        **said,
    )


def _started() -> Program:
    """Start the process that makes workers."""
    # Each process has a thread for computing, and torchft from wherever it is.
    environ = {"OMP_NUM_THREADS": "1"}
    if torchft_path():
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*sys.path, torchft_path()]))
    return Program("benchmarks.time_to_loss.crew", quiet=True, environ=environ)
