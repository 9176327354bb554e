"""Founding: the first parameters come from one worker, and go to everyone who joins after it.

The first worker is asked for its parameters; when it is gone before they are here, the next one is.
Who joins meanwhile is welcomed when they are here, and with them the quantum.
"""

import logging
from collections.abc import Mapping

from gradwire_protocol import InOrder, InvalidMessageError
from gradwire_protocol.messages import Contents, Resume, Snapshot, Welcome
from gradwire_protocol.snapshots import SnapshotFeed
from gradwire_server.recovery import Recovery
from gradwire_server.roster import Member, Phase, Roster
from gradwire_server.run import Run

logger = logging.getLogger("gradwire.master")


def welcome(member: Member, run: Run, roster: Roster) -> None:
    """Give who has just joined the run's parameters, or ask it for its own, or let it wait."""
    if run.founded:
        _let_in(member, run, roster, run.snapshot())
    elif run.recovery is None and not _has_founder(roster):
        _ask_to_found(member, run, roster)


def gather(member: Member, resume: Resume, run: Run, roster: Roster) -> None:
    """Note who is back after the master was started anew; go on when all are."""
    recovery = run.recovery
    assert recovery is not None
    recovery.returned[member] = resume
    if recovery.gathering and recovery.is_complete:
        recover(run, roster)


def recover(run: Run, roster: Roster) -> None:
    """Wait for nobody any more, and ask for the replica to go on with."""
    recovery = run.recovery
    assert recovery is not None
    recovery.gathering = False
    heir = recovery.most_advanced()
    assert heir is not None, "the first one who was back began it"
    logger.info(
        "%d workers are back: run %r goes on with the replica of %s",
        len(recovery.returned),
        run.name,
        heir.name,
    )
    run.begin_again(heir.join)
    _ask_to_found(heir, run, roster)


def take_contents(member: Member, contents: Contents, run: Run | None, roster: Roster) -> None:
    """Take what the replica contains that a worker sends.

    Raises
    ------
    InvalidMessageError
        If the worker was not asked for it.
    """
    if run is None or run.recovery is None or member.phase is not Phase.FOUNDING:
        raise InvalidMessageError(f"Contents from {member.name}, who was not asked for them")
    run.recovery.contents = dict(contents.versions)
    _begin_if_complete(member, run, roster)


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
    run.add_first(block)
    _begin_if_complete(member, run, roster)


def _begin_if_complete(member: Member, run: Run, roster: Roster) -> None:
    """Begin when the parameters are here, and what they contain: they overtake each other."""
    assembly, recovery = run.assembly, run.recovery
    if assembly is None or assembly.elements_received < assembly.elements:
        return
    if recovery is not None:
        if recovery.contents is None:
            return
        _go_on(member, run, recovery, recovery.contents)
    run.assembly = None
    member.move_to(Phase.LIVE)
    logger.info("run %r begins with %d parameters", run.name, run.layout.elements)
    snapshot = run.snapshot()
    for other in roster:
        if other.phase is not Phase.WAITING:
            continue
        other.updates = InOrder(run.relay.next_of(other.rank))
        if recovery is not None and other in recovery.returned and recovery.may_keep_replica(other):
            welcome_back(other, recovery.returned[other], run, roster)
        else:
            _let_in(other, run, roster, snapshot)
    run.recovery = None


def _go_on(member: Member, run: Run, recovery: Recovery, versions: Mapping[int, int]) -> None:
    """Let a run go on with what a worker has."""
    run.recovered = True
    run.relay.go_on_from(versions)
    run.unclaimed = versions.keys() - {each.rank for each in recovery.returned}
    member.updates = InOrder(run.relay.next_of(member.rank))


def found_again(run: Run, roster: Roster) -> bool:
    """Where the founder is gone, ask the next one; return whether the run can go on."""
    if run.founded or _has_founder(roster):
        return True
    if run.recovery is not None:
        run.recovery.keep_only(roster)
        run.recovery.contents = None
        if run.recovery.returned and not run.recovery.gathering:
            recover(run, roster)
        if run.recovery.returned:
            return True
        run.recovery = None  # all who had it are gone again
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
