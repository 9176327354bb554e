"""Faults of a simulated history, and things that come in between: what each of them does.

A fault that must not strike just now, because of `Gaps`, tries again until its act is over.
"""

import errno
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Literal

from support.gaps import may_cut_off, may_lose, may_lose_master
from support.network import Link
from support.trainee import Machine

if TYPE_CHECKING:
    from support.histories import History

Direction = Literal["both", "to the master", "from the master"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that goes wrong at a time."""

    at: float
    """In seconds from the beginning of its act."""

    which: float
    """From 0 to 1: whom it strikes of all that it may."""

    def strike(self, history: "History") -> bool:
        """Let it happen; return False if it must not just now."""
        raise NotImplementedError

    def __str__(self) -> str:
        """Return it as a person would say it."""
        values = ", ".join(
            f"{each.name} {getattr(self, each.name)}"
            for each in fields(self)
            if each.name not in ("at", "which")
        )
        return f"{self.at:.3f} {type(self).__name__} {values}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KilledWorker(Fault):
    """A worker's process dies; another one begins on its machine later, or never."""

    back_after: float | None

    def strike(self, history: "History") -> bool:
        machine = history.choose(self.which)
        if machine is None or not may_lose(history, machine):
            return False
        history.kill_worker(machine)
        if self.back_after is not None:
            history.start_later(machine, self.back_after)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class KilledMaster(Fault):
    """The master dies, perhaps together with a worker, and another one begins later."""

    back_after: float
    power: bool
    """Whether its machine loses power: what is not on the disk is gone."""
    with_worker: bool
    last_seconds: float | None
    """In the midst of passing an update on: so long after it, in which only some still hear of it.
    None: at any moment."""

    def strike(self, history: "History") -> bool:
        machine = history.choose(self.which) if self.with_worker else None
        if not may_lose_master(history, machine):
            return False
        if self.last_seconds is None:
            self._kill(history, machine)
        else:
            history.lie_in_ambush(self.last_seconds, partial(self._kill, history, machine))
        return True

    def _kill(self, history: "History", machine: Machine | None) -> None:
        if not may_lose_master(history, machine):
            return
        if machine is not None and machine.process is not None:
            history.kill_worker(machine)
        history.kill_master_for(self.back_after, power=self.power)


@dataclass(frozen=True, slots=True, kw_only=True)
class LostEverybody(Fault):
    """All processes die, and begin again: what a checkpoint has is what is left."""

    back_after: float
    power: bool

    def strike(self, history: "History") -> bool:
        if history.disk is None or not history.master_is_whole:
            return False
        history.lose_everybody(self.back_after, power=self.power)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition(Fault):
    """Nothing gets through between some workers and the master, in one direction or both."""

    seconds: float
    direction: Direction
    count: int

    def strike(self, history: "History") -> bool:
        machines = history.choose_several(self.which, self.count)
        if not machines or not may_cut_off(history):
            return False
        for machine in machines:
            history.isolate(machine, self.seconds, self.direction)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class NewAddress(Fault):
    """A worker has another address all of a sudden, as behind a NAT that forgets."""

    def strike(self, history: "History") -> bool:
        machine = history.choose(self.which)
        if machine is None or machine.process is None:
            return False
        history.move(machine.process)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockJump(Fault):
    """A clock jumps ahead. Monotonic clocks do, when a laptop was asleep; back they never go."""

    seconds: float

    def strike(self, history: "History") -> bool:
        host = history.choose_host(self.which, disturbs=True)
        if host is None:
            return False
        history.note(history.name_of(host), "'s clock jumps ahead by %.3f s", self.seconds)
        history.network.jump_ahead(host, self.seconds)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeOfDayJump(Fault):
    """The time of day jumps on a worker's machine, ahead or back: handshakes tell it."""

    seconds: float

    def strike(self, history: "History") -> bool:
        machine = history.choose(self.which)
        if machine is None:
            return False
        ahead = history.time_ahead
        ahead[machine.name] = ahead.get(machine.name, 0.0) + self.seconds
        history.note(machine.name, "'s time of day jumps by %.3f s", self.seconds)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowHost(Fault):
    """A machine does everything late for a while, the master's perhaps."""

    slowness: float
    seconds: float

    def strike(self, history: "History") -> bool:
        host = history.choose_host(self.which)
        if host is None:
            return False
        history.note(history.name_of(host), "is slow: up to %.3f s", self.slowness)
        host.slowness = self.slowness
        history.network.after(self.seconds, partial(history.network.hurry, host))
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause(Fault):
    """A process is stopped and goes on later, the master's perhaps."""

    seconds: float

    def strike(self, history: "History") -> bool:
        host = history.choose_host(self.which, disturbs=True)
        if host is None:
            return False
        history.note(history.name_of(host), "is stopped for %.3f s", self.seconds)
        history.network.suspend(host, self.seconds)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather(Fault):
    """The whole network is worse for a while."""

    link: Link
    seconds: float

    def strike(self, history: "History") -> bool:
        history.note("network", "gets worse: %s", said(self.link))
        network, before = history.network, history.plan.link
        network.link = self.link
        network.after(self.seconds, partial(setattr, network, "link", before))
        return True

    def __str__(self) -> str:
        return f"{self.at:.3f} Weather {self.seconds} s {said(self.link)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Newcomer(Fault):
    """Another worker joins, on a machine of its own. No fault, but what comes in between."""

    def strike(self, history: "History") -> bool:
        history.start_later(history.new_machine(), 0.0)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaver(Fault):
    """A worker leaves before the end. No fault either."""

    def strike(self, history: "History") -> bool:
        machine = history.choose(self.which)
        if machine is None or not may_lose(history, machine) or machine.process is None:
            return False
        machine.is_done = True
        machine.process.note("leaves")
        machine.process.leave()
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenDisk(Fault):
    """Nothing can be written to the master's disk for a while."""

    error: int
    seconds: float

    def strike(self, history: "History") -> bool:
        disk = history.disk
        if disk is None:
            return False
        history.note("disk", "fails with %s", errno.errorcode[self.error])
        disk.failure = self.error
        history.network.after(self.seconds, partial(setattr, disk, "failure", None))
        return True


def said(link: Link) -> str:
    """Return what is special about a link."""
    ordinary = Link()
    return ", ".join(
        f"{each.name} {getattr(link, each.name)}"
        for each in fields(link)
        if getattr(link, each.name) != getattr(ordinary, each.name)
    )
