"""`Gaps`: what cannot be survived yet, and whether a fault may strike in spite of it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gradwire_server.state.roster import Phase
from support.trainee import Machine, Trainee

if TYPE_CHECKING:
    from support.histories import History


@dataclass(frozen=True, slots=True)
class Gaps:
    """What cannot be survived yet, and so does not happen. False lets it happen."""

    away_with_master: bool = True
    """While the master is lost, nobody is cut off, and when it is lost, at most one worker is whose
    updates some have and others have not: who is back later than the others, with updates of who is
    dead, has to give these back."""


GAPS: Final = Gaps()
# That a worker for which more than 64 MiB wait is dropped needs no switch: a history has a few KiB.


def may_cut_off(history: "History") -> bool:
    """Return whether somebody may be away now."""
    return history.master_is_whole or not GAPS.away_with_master


def may_lose(history: "History", machine: Machine) -> bool:
    """Return whether a worker may be gone for ever now."""
    return any(each.machine is not machine for each in history.live) or history.master_is_whole


def may_lose_master(history: "History", machine: Machine | None) -> bool:
    """Return whether the master may die now, perhaps together with a worker."""
    if not history.master_host.alive:
        return False
    others = [p for p in history.live if p.machine is not machine and not history.is_cut_off(p)]
    if not others:  # then the run is lost, if there was one
        return not history.live and history.master.run is None
    if any(process.worker.state.workers < len(history.live) for process in history.live):
        return False  # a new master that hears of too few goes on without the others
    away = [p for p in history.live if _is_away(history, p)]
    if not away or not GAPS.away_with_master:
        return True
    ranks = {process.rank for process in history.live}
    run = history.master.run
    versions = {} if run is None else run.relay.versions
    unstable = [
        rank
        for rank, sequence in versions.items()
        if rank not in ranks and any(p.received(rank) != sequence for p in history.live)
    ]
    return len(away) + len(unstable) + (machine is not None) <= 1


def _is_away(history: "History", process: Trainee) -> bool:
    """Return whether a worker is not with the master just now, or is not for the master.

    While a new master gets its run back, those are not away who are on their way to it. A worker
    that is being given another replica is: it lacks what the others have.
    """
    member = history.master.roster.with_id(process.worker.state.join.worker_id)
    if history.is_cut_off(process) or (member is not None and member.phase is Phase.SYNCING):
        return True
    if process.masters[-1] != history.masters:
        return False
    return process.lost is not None or member is None
