"""The status of a master's run, for HTTP and for operators."""

from typing import Any

from gradwire_server.master.orders import Orders
from gradwire_server.state.roster import Member, Roster
from gradwire_server.state.run import Run


def status_of(
    run: Run | None, roster: Roster, orders: Orders, checkpoint: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the status as values that JSON has."""
    return {
        "run": run.name if run else None,
        "finished": run is not None and run.finished,
        "parameters": run.layout.elements if run else None,
        "damaged_blocks": sorted(run.damaged) if run else [],
        "workers": [_described(member) for member in roster if not member.observes],
        "observers": [
            _described(member) for member in roster if member.observes and not member.stands_by
        ],
        "versions": {str(r): s for r, s in sorted(run.relay.versions.items())} if run else {},
        "draining": orders.draining is not None,
        "denied": sorted(orders.denied),
        "checkpoint": checkpoint,
    }


def _described(member: Member) -> dict[str, Any]:
    return {
        "rank": member.rank,
        "name": member.shown_name,
        "phase": member.phase.name.lower(),
        "quarantined": member.quarantine is not None,
    }
