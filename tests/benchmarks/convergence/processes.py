"""Training with real processes: workers that share their network with nobody else.

Where nothing is said of a link, that is a loopback device. With a link there are two machines at
its ends, the master on the first, and the workers on each in turn. What goes over the devices is
what a method sends, with all headers and acknowledgements.
"""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal, TypeAlias

from benchmarks.convergence.outcome import Outcome
from benchmarks.masters import Master, address_of
from benchmarks.programs import Program
from support.emulator import emulated_link
from support.link import Link
from support.namespaces import DEVICE, Machine, ip, unconnected_machines

Beyond: TypeAlias = Literal["relays", "masters"]

RELAYS: Final = 2


class Processes:
    """The processes of one task.

    Parameters
    ----------
    members : sequence of Program
    """

    def __init__(self, members: Sequence[Program]) -> None:
        self._members = members

    def train(self, method: str, rate: float, seed: int) -> Outcome:
        """Train from the beginning, by one of the methods; return what came of it."""
        return Outcome.of(self.ask(method=method, rate=rate, seed=seed)[0])

    def ask(self, **request: object) -> list[dict[str, Any]]:
        """Tell all members the same; return what each has to say about it."""
        line = json.dumps(request)
        for member in self._members:
            member.tell(line)
        answers, complaints = [], []
        for member in self._members:
            try:
                answers.append(member.read())
            except RuntimeError as error:  # where one has failed, others complain of that
                complaints.append(str(error))
        if complaints:
            raise RuntimeError("\n".join(complaints))
        return answers


@contextmanager
def processes(
    task: str,
    steps: int,
    workers: int,
    *,
    keys: bool,
    member: str = "convergence.member",
    link: Link | None = None,
    beyond: Beyond | None = None,
) -> Iterator[Processes]:
    """Start workers, and gradwire's master, which only gradwire's workers talk to.

    Parameters
    ----------
    task : str
        Name of what they train.
    steps : int
    workers : int
    keys : bool
        Whether the master and gradwire's workers have keys.
    member : str
        The benchmarks' module that is a worker; it takes the arguments of `convergence.member`.
    link : Link, optional
        Between two machines, in either direction.
    beyond : str, optional
        What there is besides one master: two relays before it, with half of the workers each, or a
        second master.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory())
        machines: Sequence[Machine]
        if link is None:
            machines = stack.enter_context(unconnected_machines())[:1]
            ip("-n", machines[0].namespace, "link", "set", "lo", "up")
            host, device = "127.0.0.1", "lo"
        else:
            machines = stack.enter_context(emulated_link(link, link))
            host, device = machines[0].address, DEVICE
        first = machines[0]
        master, dialled = _masters(stack, beyond, keys=keys, host=host, prefix=first.prefix)
        start = ThreadPoolExecutor(workers)
        stack.callback(start.shutdown)
        started = start.map(
            lambda rank: Program(
                f"benchmarks.{member}",
                task,
                str(steps),
                str(rank),
                str(workers),
                folder,
                prefix=machines[rank % len(machines)].prefix,
                quiet=True,
                environ=master.environ()
                | {"GRADWIRE_MASTER": dialled[rank % len(dialled)], "GLOO_SOCKET_IFNAME": device},
            ),
            range(workers),
        )
        yield Processes([stack.enter_context(member) for member in started])


def _masters(
    stack: ExitStack, beyond: Beyond | None, *, keys: bool, host: str, prefix: Sequence[str]
) -> tuple[Master, Sequence[str]]:
    """Start a master and what there is besides; return it, and what workers dial in turn."""
    options = ("--topology", "tree") if beyond == "relays" else ()
    listen = f"{host}:0"
    master = stack.enter_context(Master(*options, keys=keys, listen=listen, prefix=prefix))
    if beyond == "relays":
        return master, [address_of(stack.enter_context(master.relay())) for _ in range(RELAYS)]
    if beyond == "masters":
        other = stack.enter_context(
            Master(keys=keys, listen=listen, prefix=prefix, run_key=master.run_key)
        )
        return master, [f"{master.address},{other.address}"]
    return master, [master.address]
