"""Founding: the first parameters come from one worker, and go to everyone who joins after it.

The first worker is asked for its parameters; when it is gone before they are here, the next one is.
Who joins meanwhile is welcomed when they are here, and with them the quantum.
"""

import logging

from gradwire_protocol import InvalidMessageError
from gradwire_protocol.messages import Resume, Snapshot, Welcome
from gradwire_protocol.snapshots import SnapshotFeed
from gradwire_server.roster import Member, Phase, Roster
from gradwire_server.run import Run

logger = logging.getLogger("gradwire.master")


def welcome(member: Member, run: Run, roster: Roster) -> None:
    """Give who has just joined the run's parameters, or ask it for its own, or let it wait."""
    if run.founded:
        _let_in(member, run, roster, run.snapshot())
    elif not _has_founder(roster):
        _ask_to_found(member, run, roster)


def welcome_back(member: Member, resume: Resume, run: Run, roster: Roster) -> None:
    """Give who is back the updates that it has missed."""
    member.move_to(Phase.SYNCING)
    _welcome(member, run, roster, resumed=True)
    member.move_to(Phase.LIVE)
    for _, _, message in run.relay.log.since(resume.versions, without=member.rank):
        member.link.relay_update(message)


def take_block(member: Member, block: Snapshot, run: Run | None, roster: Roster) -> None:
    """Take a part of the first parameters; with the last one, let in who waits for them.

    Raises
    ------
    InvalidMessageError
        If the worker was not asked for it, or it does not fit.
    """
    if run is None or run.assembly is None or member.phase is not Phase.FOUNDING:
        raise InvalidMessageError(f"Snapshot from {member.name}, who was not asked for it")
    if not run.add_first(block):
        return
    run.assembly = None
    member.move_to(Phase.LIVE)
    logger.info("run %r begins with %d parameters", run.name, run.layout.elements)
    snapshot = run.snapshot()
    for other in roster:
        if other.phase is Phase.WAITING:
            _let_in(other, run, roster, snapshot)


def found_again(run: Run, roster: Roster) -> bool:
    """Where the founder is gone, ask the next one; return whether the run can go on."""
    if run.founded or _has_founder(roster):
        return True
    heir = next(iter(roster.workers), None)
    if heir is None:
        return False
    run.begin_again(heir.join)
    _ask_to_found(heir, run, roster)
    return True


def _has_founder(roster: Roster) -> bool:
    return any(member.phase is Phase.FOUNDING for member in roster)


def _ask_to_found(member: Member, run: Run, roster: Roster) -> None:
    """Let a worker's parameters start the run."""
    member.move_to(Phase.FOUNDING)
    _welcome(member, run, roster, founder=True)


def _let_in(member: Member, run: Run, roster: Roster, snapshot: bytes) -> None:
    """Give a worker the run's parameters."""
    member.move_to(Phase.SYNCING)
    _welcome(member, run, roster)
    member.feed = SnapshotFeed(snapshot, member.link)


def _welcome(
    member: Member, run: Run, roster: Roster, *, founder: bool = False, resumed: bool = False
) -> None:
    member.link.send(
        Welcome(
            run=run.name,
            rank=member.rank,
            sequence=member.updates.expected - 1,
            quantum_exponent=run.replica.quantum_exponent,
            layout=run.layout,
            roster=roster.peers(),
            founder=founder,
            versions=dict(run.relay.versions),
            resumed=resumed,
        )
    )
