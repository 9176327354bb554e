"""What a step, the network thread and a master take, measured with real ones on loopback.

A master as a process of its own and four sessions in this one exchange updates in rounds: each
sends one, and when all have got all, the next round begins. Rounds of small updates and of large
ones, of four sessions and of two, tell what an update, a delivery and a byte take: what processors
did in a quick round, divided by what was done. Keys are in use, as they are between machines.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, thread_time
from typing import Final

import numpy as np

from gradwire.cli.estimate.kernels import KernelCosts, scan_seconds
from gradwire.cli.launch.keys import local_keys
from gradwire.cli.launch.processes import LocalMaster, MasterEndedError, local_master
from gradwire.errors import DeadlineError, GradwireError
from gradwire.session.join import join
from gradwire.session.session import Session
from gradwire.settings.settings import TORCHRUN
from gradwire_codecs.arrays import Float32Array
from gradwire_protocol.limits import DATAGRAM_BYTES

sessions_logger = logging.getLogger("gradwire.join")

PARAMETERS: Final = 2**20
SMALL_HITS: Final = 16
LARGE_HITS: Final = 2**15
"""About 31 KB: half a train of datagrams, of which larger updates fill several."""
THRESHOLD: Final = 2.0**-10

SESSIONS: Final = 4
FEW: Final = 2
ROUNDS: Final = 24
QUICK: Final = 0.25
"""Of the rounds, the part that counts as quick: what else this machine does is in the others."""
WARM_UP_ROUNDS: Final = 5

LEAST_SHARE: Final = 0.4
"""Of what handling an update takes in the mean, taking one in or passing it on takes at least."""

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
    """What a round has taken that three in four were slower than."""

    sessions: int
    step: float
    """Of one call of `Session.step` that applies nothing, in seconds of its thread."""
    apply: float
    """Of one update that is applied."""
    network: float
    """Of all network threads together, in seconds of processors."""
    master: float
    """Of the master."""
    update_bytes: float

    @property
    def deliveries(self) -> int:
        """How often an update came to somebody."""
        return self.sessions * (self.sessions - 1)


def measure_run(kernels: KernelCosts) -> RunCosts:
    """Measure.

    Parameters
    ----------
    kernels : KernelCosts
        What the codec takes of all that.
    """
    level = sessions_logger.level
    sessions_logger.setLevel(logging.WARNING)
    try:
        with without_settings():
            return asyncio.run(_measure(kernels))
    finally:
        sessions_logger.setLevel(level)


@contextmanager
def without_settings() -> Iterator[None]:
    """Hide from this process and its children what the environment says to sessions and masters.

    It is for the training that is asked about, not for what is measured here.
    """
    ours = (*TORCHRUN.values(), *(name for name in os.environ if name.startswith("GRADWIRE_")))
    before = {name: os.environ.pop(name) for name in ours if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(before)


def costs_from(
    few: Round, small: Round, large: Round, kernels: KernelCosts, scan_seconds: float
) -> RunCosts:
    """Return what one update, one delivery and one byte take, from rounds of three kinds.

    Parameters
    ----------
    few, small, large : Round
        Of few sessions with small updates, of many with small ones, and of many with large ones.
    kernels : KernelCosts
    scan_seconds : float
        What looking for what to send has taken of a step.
    """
    # master = sessions x update + deliveries x delivery, twice.
    delivery = (small.master - few.master * small.sessions / few.sessions) / (
        small.deliveries - few.deliveries * small.sessions / few.sessions
    )
    # Both are much the same work; noise must not make either of them free.
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
    options = ["--listen", "127.0.0.1:0", "--http", "off", "--outlier-policy", "off"]
    options += ["--datagram-bytes-max", str(DATAGRAM_BYTES)]
    with local_keys(SESSIONS) as keys:
        try:
            async with local_master(options, keys.of_master, said.append) as master:
                few, small, large = await asyncio.to_thread(_rounds, master, keys.worker_key_files)
        except MasterEndedError as error:
            raise GradwireError("\n".join([str(error), *said])) from error
    return costs_from(few, small, large, kernels, scan_seconds(PARAMETERS))


def _rounds(master: LocalMaster, key_files: Sequence[Path]) -> tuple[Round, Round, Round]:
    with ExitStack() as stack:
        workers = []
        for key_file in key_files:
            worker = _Worker(master.address, key_file)
            stack.callback(worker.session.close)
            workers.append(worker)
        meter = _Meter(master.child.pid)
        small, large = (_play(workers, hits, meter) for hits in (SMALL_HITS, LARGE_HITS))
        for worker in workers[FEW:]:
            worker.session.close()
        few = _play(workers[:FEW], SMALL_HITS, meter)
    return few, small, large


class _Worker:
    """A session, and what it trains."""

    def __init__(self, master: str, key_file: Path) -> None:
        self.parameters: Float32Array = np.zeros(PARAMETERS, np.float32)
        self.session: Session = join(
            self.parameters,
            master=master,
            key_file=key_file,
            threshold=THRESHOLD,
            datagram_bytes_max=DATAGRAM_BYTES,
        )


class _Meter:
    """Time on processors: the master's, and that of this process but for this thread."""

    def __init__(self, pid: int) -> None:
        # clock_getcpuclockid(3), which Python has for threads only.
        self._clock = (~pid << 3) | 2

    def read(self) -> tuple[float, float]:
        return time.clock_gettime(self._clock), time.process_time() - thread_time()


def _play(workers: Sequence[_Worker], hits: int, meter: _Meter) -> Round:
    """Let workers send and get updates of so many elements."""
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
    master, network = np.quantile(took, QUICK, axis=0)
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
    """Wait until all have what all sent; return how long their threads have applied it."""
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
