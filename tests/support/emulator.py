"""Machines with a long, slow or bad network between them, for real sockets: two, or more of them.

Each machine has a TUN device, and a process between them passes on what the one sends to the
other, when and if a `Link` says so. It is the network of `support.network`, in real time: UDP and
TCP go through it as through any other, except that the sender's kernel has to cut what is larger
than a packet.

Needs what `support.namespaces` needs, and /dev/net/tun.
"""

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import TracebackType
from typing import Final, Generic, TypeVar

from support.emulator_process import READY, Order, Report
from support.link import Link
from support.namespaces import (
    DEVICE,
    Machine,
    ip,
    machines_apart,
    plug_in,
    unconnected_machines,
)
from support.processes import with_tests
from support.tun import open_tun

QUEUE_PACKETS: Final = 10_000
"""What a device keeps until the emulator reads it: more than any burst, so that nothing is lost
there; `Direction.unread` tells of it."""


Machines = TypeVar("Machines", bound=tuple[Machine, ...])


class EmulatedLink(Generic[Machines]):
    """What `emulated_link` and `emulated_network` return."""

    def __init__(
        self,
        machines: AbstractContextManager[Machines],
        links: tuple[Link, ...],
        seed: int,
        mtu: int,
        gro_seconds: float,
    ) -> None:
        self.report: Report
        """What the emulator did; known when the block has ended."""
        self._machines = machines
        self._links = links
        self._seed = seed
        self._mtu = mtu
        self._gro_seconds = gro_seconds
        self._lasting = self._last()

    def __enter__(self) -> Machines:
        return self._lasting.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return self._lasting.__exit__(kind, error, traceback)

    @contextmanager
    def _last(self) -> Iterator[Machines]:
        with self._machines as machines, _emulator() as process:
            assert process.stdin is not None
            assert process.stdout is not None
            order = Order(machines=machines, links=self._links, seed=self._seed, mtu=self._mtu)
            pickle.dump(order, process.stdin)
            process.stdin.flush()
            if process.stdout.readline() != READY:
                raise OSError("the emulator did not start")
            for machine in machines:
                ip("-n", machine.namespace, "link", "set", DEVICE,
                   "txqueuelen", str(QUEUE_PACKETS))  # fmt: skip
                plug_in(machine, mtu=self._mtu)
                if self._gro_seconds:
                    _wait_for_more(machine, self._gro_seconds)
            try:
                yield machines
            finally:
                answer, _ = process.communicate(b"stop")
                self.report = pickle.loads(answer)


def emulated_link(
    forward: Link,
    back: Link | None = None,
    *,
    seed: int = 0,
    mtu: int = 1500,
    gro_seconds: float = 0.0,
) -> EmulatedLink[tuple[Machine, Machine]]:
    """Make two machines with a network between them, for as long as a ``with`` block lasts.

    Parameters
    ----------
    forward, back : Link
        From the first to the second, and back; the same if only one is given. They are told to
        another process, so their `drops` have to be something that can be pickled.
    seed : int
        Determines what is lost, if the packets are the same.
    mtu : int
        Of the devices, which refuse to send what is larger. Of a `Link`, what is larger vanishes.
    gro_seconds : float
        How long the receiver's device waits for more that it can join with what came (GRO); 0:
        every packet is handed over alone. Waiting for 50 us of 200 Mbit/s makes the reads of a
        UDP socket ten times fewer, and costs the emulator more.

    Examples
    --------
    >>> link = emulated_link(Link(rate=200e6, delay=0.025, loss=0.01))
    >>> with link as (one, two):  # doctest: +SKIP
    ...     sock = one.inside(socket.socket)
    >>> link.report.forward.late_seconds_p99  # doctest: +SKIP
    """
    links = forward, back or forward
    return EmulatedLink(unconnected_machines(), links, seed, mtu, gro_seconds)


def emulated_network(
    link: Link, count: int, *, seed: int = 0, mtu: int = 1500
) -> EmulatedLink[tuple[Machine, ...]]:
    """Make machines that share a link, for as long as a ``with`` block lasts.

    Whatever one of them sends to another waits in the same queue for its part of the same rate.

    Parameters
    ----------
    link : Link
        From each machine to each other one.
    count : int
        Of machines, 2 to 26.
    seed, mtu : int
        As in `emulated_link`.
    """
    return EmulatedLink(machines_apart(count), (link,), seed, mtu, 0.0)


def _wait_for_more(machine: Machine, seconds: float) -> None:
    """Let a device join what comes within a time."""
    settings = {"gro_flush_timeout": round(seconds * 1e9), "napi_defer_hard_irqs": 1}
    for name, value in settings.items():
        command = [*machine.prefix, "tee", f"/sys/class/net/{DEVICE}/{name}"]
        subprocess.run(command, check=True, capture_output=True, input=f"{value}".encode())


@contextmanager
def _emulator() -> Iterator[subprocess.Popen[bytes]]:
    """Start the process, and end it at the latest with the block."""
    with subprocess.Popen(
        [sys.executable, "-c", "from support.emulator_process import main; main()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=with_tests(),
    ) as process:
        yield process  # then its standard input is closed, which is what ends it


def can_have_links() -> bool:
    """Return whether this system lets us have two machines and an emulator between them."""
    try:
        with unconnected_machines() as (one, _):
            os.close(one.inside(partial(open_tun, DEVICE)))
    except (OSError, subprocess.CalledProcessError):
        return False
    return True
