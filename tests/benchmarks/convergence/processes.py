"""Training with real processes: workers that share a loopback device with nobody else.

What goes over that device is what a method sends, with all headers and acknowledgements.
"""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from tempfile import TemporaryDirectory, TemporaryFile

from benchmarks.convergence.member import GRADWIRE
from benchmarks.convergence.outcome import Outcome
from benchmarks.convergence.tasks import Task
from benchmarks.programs import Program
from support.local_master import MasterProcess
from support.namespaces import ip, unconnected_machines


class Processes:
    """The processes of one method and task.

    Parameters
    ----------
    members : sequence of Program
    """

    def __init__(self, members: Sequence[Program]) -> None:
        self._members = members

    def train(self, rate: float, seed: int) -> Outcome:
        """Train from the beginning; return what came of it."""
        line = json.dumps({"rate": rate, "seed": seed})
        for member in self._members:
            member.tell(line)
        outcomes = [member.read() for member in self._members]
        return Outcome.of(outcomes[0])


@contextmanager
def processes(method: str, task: Task, workers: int) -> Iterator[Processes]:
    """Start workers, and a master where there has to be one; end them with the block."""
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory())
        machine, _ = stack.enter_context(unconnected_machines())
        ip("-n", machine.namespace, "link", "set", "lo", "up")
        master = ""
        if method == GRADWIRE:
            log = stack.enter_context(TemporaryFile("w"))
            process = stack.enter_context(MasterProcess(prefix=machine.prefix, log=log))
            master = process.address
        start = ThreadPoolExecutor(workers)
        stack.callback(start.shutdown)
        started = start.map(
            lambda rank: Program(
                "benchmarks.convergence.member",
                method,
                task.name,
                str(rank),
                str(workers),
                folder,
                prefix=machine.prefix,
                quiet=True,
                environ={"GRADWIRE_MASTER": master, "GLOO_SOCKET_IFNAME": "lo"},
            ),
            range(workers),
        )
        yield Processes([stack.enter_context(member) for member in started])
