"""The status of a run, for HTTP and for operators."""

from typing import Any

from gradwire_server.state.roster import Member, Roster
from gradwire_server.state.run import Run
from gradwire_server.updates.rounds import Rounds


def status_of(
    run: Run, roster: Roster, checkpoint: dict[str, Any] | None = None, *, now: float
) -> dict[str, Any]:
    """Return the status as values that JSON has."""
    return {
        "name": run.name,
        "finished": run.finished,
        "parameters": run.parameters,
        "mode": str(run.mode),
        "round": None if run.rounds is None else _round(run.rounds, now),
        "workers": [_described(member) for member in roster if not member.observes],
        "observers": [
            _described(member) for member in roster if member.observes and not member.stands_by
        ],
        "versions": {str(r): s for r, s in sorted(run.relay.versions.items())},
        "stopping": run.stop_reason,
        "items_paused": run.items_paused,
        "works": [ledger.status(now) for ledger in run.works.values()],
        "checkpoint": checkpoint,
    }


def _round(rounds: Rounds, now: float) -> dict[str, Any]:
    optimizer = rounds.mode.optimizer
    return {
        "closed": rounds.closed,
        "optimizer_steps": rounds.steps,
        "learning_rate": None if optimizer is None else optimizer.rate_at((rounds.steps or 0) + 1),
        "contributed": sorted(rounds.contributors),
        "complete": sorted(rounds.complete),
        "awaited": sorted(rounds.awaited - rounds.complete),
        "seconds": None if rounds.opened_at is None else round(now - rounds.opened_at, 3),
    }


def _described(member: Member) -> dict[str, Any]:
    return {
        "rank": member.rank,
        "name": member.shown_name,
        "phase": member.phase.name.lower(),
        "quarantined": member.quarantine is not None,
    }
