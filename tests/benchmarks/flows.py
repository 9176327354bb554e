"""Measures a flow between two processes, whichever protocol it speaks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.programs import FIRST_CORE, LAST_CORE, Program, processor_seconds
from support.namespaces import Machine

OURS: Final = "benchmarks.flow"
TCP: Final = "benchmarks.rivals.tcp_flow"
LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Flow:
    """What came of it."""

    megabits_per_second: float
    """Payload at the receiver."""
    sender_load: float
    receiver_load: float
    """Processor seconds per second."""


def measure_flow(
    module: str,
    *options: str,
    seconds: float,
    to: str = LOOPBACK,
    sender_prefix: Sequence[str] = (),
    receiver_prefix: Sequence[str] = (),
) -> Flow:
    """Let a flow run for so long, its start included, and return what came of it.

    Parameters
    ----------
    module : str
        `OURS` or `TCP`.
    options : str
        For both ends.
    seconds : float
        How long the receiver counts.
    to : str
        Address of the receiver.
    sender_prefix, receiver_prefix : sequence of str
        Run the ends in network namespaces.
    """
    common = ("--host", to, *options)
    with Program(
        module, "receive", *common, "--seconds", str(seconds),
        core=LAST_CORE, prefix=receiver_prefix,
    ) as receiver:  # fmt: skip
        port = str(receiver.announcement["port"])
        with Program(
            module, "send", *common, "--port", port, core=FIRST_CORE, prefix=sender_prefix
        ) as sender:
            used = processor_seconds(sender.pid)
            received = receiver.read()
            used = processor_seconds(sender.pid) - used
    took = received["seconds"]
    return Flow(8e-6 * received["bytes"] / took, used / took, received["processor_seconds"] / took)


def flow_between(sender: Machine, receiver: Machine, seconds: float) -> Callable[..., float]:
    """Return what measures a flow between two machines, in Mbit/s."""

    def flow(module: str, *options: str) -> float:
        return measure_flow(
            module, *options, seconds=seconds, to=receiver.address,
            sender_prefix=sender.prefix, receiver_prefix=receiver.prefix,
        ).megabits_per_second  # fmt: skip

    return flow
