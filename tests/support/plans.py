"""`Plan`: all that a history is determined by, drawn from one seed."""

import errno
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final, Literal

from gradwire.participant.participant import OFFLINE_STEPS_MAX
from gradwire.settings.training import StalenessBound
from gradwire_protocol.messages.modes.mode import Mode
from support.faults import (
    BrokenDisk,
    ClockJump,
    Fault,
    KilledMaster,
    KilledWorker,
    Leaver,
    LostEverybody,
    NewAddress,
    Newcomer,
    Partition,
    Pause,
    SlowHost,
    TimeOfDayJump,
    Weather,
    said,
)
from support.network import Link

SHARING: Final = Mode()

Size = Literal["short", "long", "crowd"]

WATCHED_SHARE: Final = 0.25
"""Of the short histories, those in which every datagram is looked at: that takes half as long
again."""


@dataclass(frozen=True, slots=True)
class Act:
    """Training with faults. At its end these are over, and everything has to be well again."""

    seconds: float
    faults: tuple[Fault, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to happen."""

    seed: int
    size: Size
    link: Link
    bursty: bool
    gro: bool
    elements: int
    workers: int
    interval: float
    """Between two steps, about, in seconds."""
    idle_seconds: float
    sealed: bool
    checkpoint_seconds: float | None
    """None without checkpoints."""
    resumes: bool
    """Whether a master that is started anew looks for a checkpoint."""
    log_bytes_max: int
    stable_seconds: float
    """How often workers are told what is stable."""
    buffer_steps: int | None
    """How often buffers are averaged; None where no worker has any."""
    staleness_bound: StalenessBound
    """How many steps a worker may be ahead of the slowest one; the setting of that name."""
    staleness_timeout_seconds: float
    """How long one is waited for that makes no step."""
    mode: Mode
    settings: Mapping[str, Any]
    """Of all workers, where they are not those of every simulated one."""
    offline_steps_max: int
    """How many steps a worker makes without a master."""
    watched: bool
    """Whether the invariants of the transport are checked, too."""
    acts: tuple[Act, ...] = field(repr=False)

    def lines(self) -> list[str]:
        """Return it as a person would say it."""
        return [
            f"seed {self.seed}, {self.size}: {self.workers} workers, {self.elements} parameters, "
            f"{'sealed' if self.sealed else 'no keys'}, idle timeout {self.idle_seconds} s, "
            f"steps of {self.interval} s, log of {self.log_bytes_max} bytes, buffers every "
            f"{self.buffer_steps} steps, staleness bound {self.staleness_bound}, timeout "
            f"{self.staleness_timeout_seconds} s, settings {dict(self.settings)}, steps alone "
            f"{self.offline_steps_max}, mode {self.mode}",
            f"link: {said(self.link) or 'ordinary'}; gro {self.gro}; checkpoints every "
            f"{self.checkpoint_seconds} s, resumed: {self.resumes}",
            *(
                f"act {number}, {act.seconds:.1f} s: {fault}"
                for number, act in enumerate(self.acts, 1)
                for fault in act.faults
            ),
        ]


SETTINGS: Final[Sequence[tuple[Mapping[str, Any], int]]] = (
    ({}, OFFLINE_STEPS_MAX),
    ({}, OFFLINE_STEPS_MAX),
    ({}, OFFLINE_STEPS_MAX),
    ({"threshold": None, "target_density": 0.2}, OFFLINE_STEPS_MAX),
    ({"shake_up_steps": 3}, OFFLINE_STEPS_MAX),
    ({"threshold": None, "shake_up_steps": 5}, OFFLINE_STEPS_MAX),
    ({}, 2),
    ({"threshold": None, "target_density": 0.05}, 0),
)
"""Of workers: thresholds that adapt, and steps after which they wait for a master that is lost.
None that loses a part of what was trained, or that multiplies it."""


def draw(seed: int, size: Size = "short", mode: Mode = SHARING, *, bursty: bool = False) -> Plan:
    """Draw a history; the mode changes nothing else but that nothing bounds the staleness.

    Where it is `bursty`, the network loses packets in bursts.
    """
    random = Random(f"{size} {seed}")
    idle = random.choice([1.0, 2.0, 3.0])
    sealed = random.random() < 0.3
    has_disk = random.random() < 0.35
    acts = {"short": random.choice([1, 1, 1, 2]), "long": random.randint(6, 10), "crowd": 1}[size]
    seconds = {"short": (1.5, 5.0), "long": (15.0, 60.0), "crowd": (2.0, 5.0)}[size]
    faults = {"short": (1, 4), "long": (8, 30), "crowd": (2, 6)}[size]
    kinds = _kinds(random, idle, sealed=sealed, has_disk=has_disk)
    staleness = Random(f"staleness {size} {seed}")
    settings, offline_steps_max = Random(f"settings {size} {seed}").choice(SETTINGS)
    return Plan(
        seed=seed,
        size=size,
        link=_in_bursts(_link(random), seed) if bursty else _link(random),
        bursty=bursty,
        gro=random.random() < 0.7,
        elements=random.choice({"short": [3, 20, 60], "long": [20, 400], "crowd": [8]}[size]),
        workers=_workers(random, seed, size),
        interval=random.choice({"short": [0.2, 0.4], "long": [0.3, 1.0], "crowd": [2.0]}[size]),
        idle_seconds=idle,
        sealed=sealed,
        checkpoint_seconds=random.choice([0.3, 1.0, 4.0]) if has_disk else None,
        resumes=has_disk and random.random() < 0.7,
        log_bytes_max=random.choice([1, 5_000, 2**20]),
        stable_seconds=random.choice([0.02, 0.5]),
        buffer_steps=Random(f"buffers {size} {seed}").choice(
            [None, 0] if size == "crowd" else [None, 0, 1, 3]
        ),
        # In a crowd with a bound, each would look at all others a hundred times a second.
        staleness_bound=_bound(staleness, size, mode),
        staleness_timeout_seconds=staleness.choice([0.3, 1.0, 4.0]),
        mode=mode,
        settings=settings,
        offline_steps_max=offline_steps_max,
        watched=size == "short" and random.random() < WATCHED_SHARE,
        acts=tuple(
            _act(random, random.uniform(*seconds), random.randint(*faults), kinds)
            for _ in range(acts)
        ),
    )


def _bound(random: Random, size: Size, mode: Mode) -> StalenessBound:
    bound: StalenessBound = random.choice(["auto", "off", 1, 2, 4]) if size != "crowd" else "auto"
    return "off" if mode.has_rounds else bound


def _workers(random: Random, seed: int, size: Size) -> int:
    if size == "crowd":
        # Everyone hears of everyone who comes and goes: four times as many take 64 times as long.
        return (50, 50, 50, 200)[seed % 4]
    return random.randint(2, 12) if size == "long" else random.choice([2, 2, 3, 3, 4, 5])


def _act(
    random: Random,
    seconds: float,
    count: int,
    kinds: list[tuple[int, Callable[[dict[str, float]], Fault]]],
) -> Act:
    weights, make = zip(*kinds, strict=True)
    faults = [
        each({"at": random.uniform(0, seconds), "which": random.random()})
        for each in random.choices(make, weights, k=count)
    ]
    return Act(seconds, tuple(sorted(faults, key=lambda fault: fault.at)))


def _link(random: Random) -> Link:
    """Draw a network that loses, repeats, damages, delays and reorders a little."""
    return Link(
        delay=random.choice([0.0002, 0.005, 0.05]),
        jitter=random.choice([0.0, 0.001, 0.02]),
        loss=random.choice([0.0, 0.02]),
        duplication=random.choice([0.0, 0.02]),
        corruption=random.choice([0.0, 0.01]),
        reordering=random.choice([0.0, 0.05]),
    )


def _in_bursts(link: Link, seed: int) -> Link:
    """Draw losses in bursts, by packets or by time."""
    random = Random(f"bursts {seed}")
    link = replace(link, loss=random.choice([0.005, 0.02, 0.03]))
    if random.random() < 0.5:
        return replace(link, loss_burst=random.choice([5.0, 10.0]))
    return replace(link, loss_burst_seconds=random.choice([0.005, 0.05, 0.5]))


def _worse(random: Random) -> Link:
    """Draw a network that is much worse."""
    loss = random.choice([0.1, 0.3])
    worse: list[dict[str, Any]] = [
        {"loss": loss},
        {"loss": loss, "loss_burst": random.choice([3.0, 10.0])},
        {"corruption": random.choice([0.1, 0.4])},
        {"duplication": 0.5, "copies_max": 4},
        {"delay": 0.3, "jitter": 0.3},
        {"reordering": 0.4, "reordering_delay": 0.1},
    ]
    link = _link(random)
    for each in random.sample(worse, random.choice([1, 1, 2])):
        link = replace(link, **each)
    return link


def _kinds(
    random: Random, idle: float, *, sealed: bool, has_disk: bool
) -> list[tuple[int, Callable[[dict[str, float]], Fault]]]:
    """Return how often each fault comes, and what makes one with a time and a victim."""
    choice, chance = random.choice, random.random
    kinds: list[tuple[int, Callable[[dict[str, float]], Fault]]] = [
        (4, lambda of: KilledWorker(**of, back_after=choice([None, 0.1, 1.0, 2 * idle]))),
        (4, lambda of: KilledMaster(
            **of, back_after=choice([0.01, 0.5, 2 * idle]), power=chance() < 0.5,
            with_worker=chance() < 0.3, last_seconds=choice([None, 0.0, 0.01, 0.1]),
        )),
        (4, lambda of: Partition(
            **of, seconds=idle * choice([0.3, 0.9, 1.5, 3.0]),
            direction=choice(["both", "both", "to the master", "from the master"]),
            count=choice([1, 1, 2, 3]),
        )),
        (2, lambda of: NewAddress(**of)),
        (2, lambda of: ClockJump(**of, seconds=idle * choice([0.3, 0.9, 1.5, 5.0]))),
        (2, lambda of: SlowHost(**of, slowness=choice([0.05, 0.2]), seconds=choice([1.0, 3.0]))),
        (2, lambda of: Pause(**of, seconds=idle * choice([0.3, 0.9, 1.5, 2.5]))),
        (2, lambda of: Weather(**of, link=_worse(random), seconds=choice([0.5, 2.0]))),
        (2, lambda of: Newcomer(**of)),
        (1, lambda of: Leaver(**of)),
    ]  # fmt: skip
    if sealed:
        kinds.append((1, lambda of: TimeOfDayJump(**of, seconds=choice([-3.0, -0.5, 1.0, 3600.0]))))
    if has_disk:
        kinds.append((1, lambda of: LostEverybody(
            **of, back_after=choice([0.1, 1.0]), power=chance() < 0.5)))  # fmt: skip
        kinds.append((2, lambda of: BrokenDisk(
            **of, error=choice([errno.ENOSPC, errno.EROFS, errno.EIO]),
            seconds=choice([0.5, 2.0]))))  # fmt: skip
    return kinds
