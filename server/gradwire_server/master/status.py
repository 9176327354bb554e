"""The status of a run, for HTTP and for operators."""

from typing import Any

from gradwire_server.state.roster import Member, Roster
from gradwire_server.state.run import Run


def status_of(
    run: Run, roster: Roster, checkpoint: dict[str, Any] | None = None, *, now: float
) -> dict[str, Any]:
    """Return the status as values that JSON has."""
    return {
        "name": run.name,
        "finished": run.finished,
        "parameters": run.layout.elements,
        "damaged_blocks": sorted(run.damaged),
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


def _described(member: Member) -> dict[str, Any]:
    return {
        "rank": member.rank,
        "name": member.shown_name,
        "phase": member.phase.name.lower(),
        "quarantined": member.quarantine is not None,
    }
