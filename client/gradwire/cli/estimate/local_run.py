"""Costs of a step, the network thread and a master, measured with real ones on loopback.

A master in a process of its own and four sessions in this process exchange updates in rounds: each
session sends one update, and the next round begins when every session has all of them. From rounds
with small and with large updates, with four and with two sessions, follow the costs of an update, a
delivery and a byte: the processor time of a quick round, divided by what was done in it. Keys are
in use, as they are between machines.
"""

import asyncio
import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, thread_time
from typing import Final

import numpy as np

from gradwire.cli.estimate.kernels import KernelCosts, scan_seconds
from gradwire.cli.launch.keys import local_keys
from gradwire.cli.launch.processes import MasterChild, MasterEndedError, local_master_process
from gradwire.errors import DeadlineError, GradwireError, GradwireWarning
from gradwire.session.join import join
from gradwire.session.session import Session
from gradwire.settings.settings import SRUN, TORCHRUN
from gradwire_codecs.arrays import Float32Array
from gradwire_protocol.limits import DATAGRAM_BYTES

logger = logging.getLogger("gradwire")

PARAMETERS: Final = 2**20
SMALL_HITS: Final = 16
LARGE_HITS: Final = 2**15
"""About 31 KB: half a train of datagrams; larger updates fill several trains."""
THRESHOLD: Final = 2.0**-10

SESSIONS: Final = 4
FEW: Final = 2
ROUNDS: Final = 24
QUICK_QUANTILE: Final = 0.25
"""Quantile of the rounds' times that counts: slower rounds have other load of this machine in
them."""
WARM_UP_ROUNDS: Final = 5

LEAST_SHARE: Final = 0.4
"""Receiving an update, and passing it on, each take at least this part of the mean of both."""

ROUND_SECONDS_MAX: Final = 10.0
POLL_SECONDS: Final = 0.0002


@dataclass(frozen=True, slots=True)
class RunCosts:
    """Seconds of one core; see `Costs`."""

    step_seconds: float
    apply_seconds: float
    network_seconds: float
    network_seconds_per_byte: float
    master_update_seconds: float
    master_delivery_seconds: float
    master_seconds_per_byte: float


@dataclass(frozen=True, slots=True)
class Round:
    """Times of a quick round: three in four rounds were slower."""

    sessions: int
    step: float
    """Seconds of its thread for a call of `Session.step` that applies nothing."""
    apply: float
    """Seconds to apply one update."""
    network: float
    """Processor seconds of all network threads together."""
    master: float
    """Processor seconds of the master."""
    update_bytes: float

    @property
    def deliveries(self) -> int:
        """Number of updates that sessions received."""
        return self.sessions * (self.sessions - 1)


def measure_run(kernels: KernelCosts) -> RunCosts:
    """Measure a local run; the costs of the codec are taken out of it."""
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with without_settings(), warnings.catch_warnings():
            # These parameters grow from zero, and train nothing that could diverge.
            warnings.simplefilter("ignore", GradwireWarning)
            return asyncio.run(_measure(kernels))
    finally:
        logger.setLevel(level)


@contextmanager
def without_settings() -> Iterator[None]:
    """Hide the variables for sessions and masters from this process and its children.

    They are for the user's training, not for this measurement.
    """
    launchers = (*TORCHRUN.values(), *SRUN.values())
    ours = (*launchers, *(name for name in os.environ if name.startswith("GRADWIRE_")))
    before = {name: os.environ.pop(name) for name in ours if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(before)


def costs_from(
    few: Round, small: Round, large: Round, kernels: KernelCosts, scan_seconds: float
) -> RunCosts:
    """Return the costs of an update, a delivery and a byte, from rounds of three kinds.

    These are few sessions with small updates, many with small ones, and many with large ones.
    `scan_seconds` is the part of `Round.step` in which a session searches for what to send.
    """
    # Solves master = sessions x update + deliveries x delivery, for `few` and `small`.
    delivery = (small.master - few.master * small.sessions / few.sessions) / (
        small.deliveries - few.deliveries * small.sessions / few.sessions
    )
    # Update and delivery are about the same work; noise must not make one of them free.
    handled = small.sessions + small.deliveries
    least = LEAST_SHARE * small.master / handled
    delivery = min(max(delivery, least), (small.master - small.sessions * least) / small.deliveries)
    update = (small.master - small.deliveries * delivery) / small.sessions
    extra_bytes = handled * (large.update_bytes - small.update_bytes)
    decoding = small.sessions * (LARGE_HITS - SMALL_HITS) * kernels.master_seconds_per_hit
    return RunCosts(
        step_seconds=max(small.step - scan_seconds, 0.0),
        apply_seconds=small.apply,
        network_seconds=small.network / handled,
        network_seconds_per_byte=max(large.network - small.network, 0.0) / extra_bytes,
        master_update_seconds=update,
        master_delivery_seconds=delivery,
        master_seconds_per_byte=max(large.master - small.master - decoding, 0.0) / extra_bytes,
    )


async def _measure(kernels: KernelCosts) -> RunCosts:
    said: list[str] = []
    options = ["--listen", "127.0.0.1:0", "--http", "off", "--outliers", "off"]
    options += ["--datagram-bytes-max", str(DATAGRAM_BYTES)]
    with local_keys(SESSIONS) as keys:
        try:
            environ = keys.master_environment
            async with local_master_process(options, environ, said.append) as master:
                few, small, large = await asyncio.to_thread(_rounds, master, keys.worker_key_files)
        except MasterEndedError as error:
            raise GradwireError("\n".join([str(error), *said])) from error
    return costs_from(few, small, large, kernels, scan_seconds(PARAMETERS))


def _rounds(master: MasterChild, key_files: Sequence[Path]) -> tuple[Round, Round, Round]:
    with ExitStack() as stack:
        workers = []
        for key_file in key_files:
            worker = _Worker(master.address, key_file)
            stack.callback(worker.session.close)
            workers.append(worker)
        meter = _Meter(master.child.pid)
        small, large = (_play_rounds(workers, hits, meter) for hits in (SMALL_HITS, LARGE_HITS))
        for worker in workers[FEW:]:
            worker.session.close()
        few = _play_rounds(workers[:FEW], SMALL_HITS, meter)
    return few, small, large


class _Worker:
    """A session and its parameters."""

    def __init__(self, master: str, key_file: Path) -> None:
        self.parameters: Float32Array = np.zeros(PARAMETERS, np.float32)
        self.session: Session = join(
            self.parameters,
            master=master,
            key_file=key_file,
            threshold=THRESHOLD,
            staleness_bound="off",  # one thread steps for all of them
            datagram_bytes_max=DATAGRAM_BYTES,
        )


class _Meter:
    """Processor time: of the master, and of this process without this thread."""

    def __init__(self, pid: int) -> None:
        # The clock of clock_getcpuclockid(3), which Python has for threads only.
        self._clock = (~pid << 3) | 2

    def read(self) -> tuple[float, float]:
        return time.clock_gettime(self._clock), time.process_time() - thread_time()


def _play_rounds(workers: Sequence[_Worker], hits: int, meter: _Meter) -> Round:
    """Play rounds with updates of a number of elements."""
    generator = np.random.default_rng(0)
    places = np.sort(generator.choice(PARAMETERS, hits, replace=False))
    step_times: list[float] = []
    took: list[tuple[float, float]] = []
    apply_seconds = 0.0
    for i in range(WARM_UP_ROUNDS + ROUNDS):
        if i == WARM_UP_ROUNDS:
            took.clear()
            before = [worker.session.stats for worker in workers]
            step_times.clear()
            apply_seconds = 0.0
        began = meter.read()
        for worker in workers:
            worker.parameters[places] += np.float32(THRESHOLD if i % 2 else -THRESHOLD)
        step_times += [_timed(worker.session.push) for worker in workers]
        apply_seconds += _pull_all(workers, hits)
        master, network = (late - early for early, late in zip(began, meter.read(), strict=True))
        took.append((master, network))
    master, network = np.quantile(took, QUICK_QUANTILE, axis=0)
    after = [worker.session.stats for worker in workers]
    pairs = list(zip(before, after, strict=True))
    applied = sum(late.updates_applied - early.updates_applied for early, late in pairs)
    sent = sum(late.updates_sent - early.updates_sent for early, late in pairs)
    return Round(
        sessions=len(workers),
        step=float(np.median(step_times)),
        apply=apply_seconds / applied,
        network=float(network),
        master=float(master),
        update_bytes=sum(late.bytes_encoded - early.bytes_encoded for early, late in pairs) / sent,
    )


def _pull_all(workers: Sequence[_Worker], hits: int) -> float:
    """Wait until all have the updates of all; return the seconds in which threads applied them."""
    seconds = 0.0
    deadline = monotonic() + ROUND_SECONDS_MAX
    for worker in workers:
        missing = hits * (len(workers) - 1)
        while missing > 0:
            began = thread_time()
            elements = sum(update.elements for update in worker.session.pull())
            if elements:
                seconds += thread_time() - began
                missing -= elements
                continue
            if monotonic() > deadline:
                raise DeadlineError(
                    f"updates on loopback did not arrive in {ROUND_SECONDS_MAX:g} s"
                )
            time.sleep(POLL_SECONDS)
    return seconds


def _timed(call: Callable[[], object]) -> float:
    began = thread_time()
    call()
    return thread_time() - began
