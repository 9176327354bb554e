"""Founding: the first parameters come from one worker, and go to every worker that joins later.

The first worker, the founder, is asked for its parameters; if it leaves before they are complete,
the next worker is asked. A worker that joins meanwhile is sent WELCOME when parameters and quantum
are known.
"""

import logging
from typing import Final

from gradwire_codecs import unpack_block
from gradwire_protocol import InOrder, InvalidMessageError
from gradwire_protocol.messages.admission import Place, RefusalCode, Refuse, Resume, Welcome
from gradwire_protocol.messages.link import EntriesReceived
from gradwire_protocol.messages.replicas import Contents, Snapshot
from gradwire_protocol.messages.snapshots import SnapshotFeed, expand_block
from gradwire_server.replica.recovery import continue_run, may_keep_replica, store_entries
from gradwire_server.replica.repairs import offer
from gradwire_server.series.journal import Happening
from gradwire_server.state.restart import RunRecovery
from gradwire_server.state.roster import Member, Phase, Roster
from gradwire_server.state.run import Run

logger = logging.getLogger("gradwire.master")

TIMES_LOST_MAX: Final = 3
"""How often all workers that had the run may be lost before it begins with a new worker. A worker
that never stays for long enough to send its replica must not hold others up."""


RANK_TAKEN: Final = Refuse(
    RefusalCode.NOT_EXPECTED,
    "the master has restarted while this worker was away, and has given its rank to another "
    "worker: join again, as a new worker",
)


def welcome(member: Member, run: Run, roster: Roster, now: float) -> None:
    """Send a new member the run's parameters, or ask it for its own, or let it wait."""
    if run.founded:
        _sync(member, run, roster, now)
    elif run.recovery is None and _founder_of(roster) is None:
        _ask_to_found(member, run, roster)


def add_returned(member: Member, resume: Resume, run: Run, roster: Roster, now: float) -> None:
    """Note a worker that has returned to a restarted master; go on when all have."""
    recovery = run.recovery
    assert recovery is not None
    recovery.returned[member] = resume
    if recovery.gathering and recovery.is_complete:
        recover(run, roster, now)


def recover(run: Run, roster: Roster, now: float) -> None:
    """Choose the heir among the returned workers, and ask for its replica."""
    recovery = run.recovery
    assert recovery is not None
    for displaced in recovery.pop_displaced():
        displaced.link.send(RANK_TAKEN)
    heir = recovery.choose()
    whose = "our own" if heir is None else f"that of {heir.name}"
    text = f"{len(recovery.returned)} workers are back: run {run.name!r} goes on with a replica, "
    run.journal.note(Happening.BEGAN, text + whose, run=run.name, at=now)
    if heir is None:
        continue_run(run, recovery, now)
        _sync_waiting(run, recovery, roster, now)
    else:
        recovery.deadline = now + recovery.seconds
        recovery.assembly.elements = run.layout.elements
        recovery.log = recovery.start.log.continued(recovery.start.position, now)
        run.restart_founding(heir.join)
        _ask_to_found(heir, run, roster)


def receive_contents(
    member: Member, contents: Contents, run: Run | None, roster: Roster, now: float
) -> None:
    """Store the versions of the replica that a worker sends.

    Raises `InvalidMessageError` if the worker was not asked for it.
    """
    if run is None or run.recovery is None or member.phase is not Phase.FOUNDING:
        raise InvalidMessageError(f"Contents from {member.name}, which was not asked for them")
    run.recovery.contents = dict(contents.versions)
    _begin_if_complete(run, roster, now)


def receive_block(
    member: Member, block: Snapshot, run: Run | None, roster: Roster, now: float
) -> None:
    """Store a block of the first parameters; with the last one, the run begins.

    Raises `InvalidMessageError` if the worker was not asked for it, or it does not fit.
    """
    if run is None or run.assembly is None or member.phase is not Phase.FOUNDING:
        raise InvalidMessageError(f"Snapshot from {member.name}, which was not asked for it")
    run.add_first_block(expand_block(block, run.layout.elements, unpack_block))
    _begin_if_complete(run, roster, now)


def receive_entries(
    member: Member, received: EntriesReceived, run: Run, roster: Roster, now: float
) -> None:
    """Store entries of the log that the heir of a run keeps.

    Raises `InvalidMessageError` if the worker was not asked for them, or they do not fit the run.
    """
    store_entries(member, received, run, now)
    _begin_if_complete(run, roster, now)


def welcome_back(member: Member, run: Run, roster: Roster, now: float) -> None:
    """Make a returning worker live with its own replica, and send it what that lacks."""
    resume = member.join.resume
    assert resume is not None
    position = resume.place.position
    member.move_to(Phase.SYNCING)
    _welcome(member, run, roster, resumed=True)
    member.move_to(Phase.LIVE)
    run.relay.subscribe(member, now, position)


def _begin_if_complete(run: Run, roster: Roster, now: float) -> None:
    """Start the run if the parameters, and in a recovery their versions, are complete."""
    assembly, recovery = run.assembly, run.recovery
    if assembly is None or not assembly.is_complete:
        return
    if recovery is not None:
        recovery.deadline = now + recovery.seconds
        if recovery.contents is None or not recovery.has_log:
            return
    founder = _founder_of(roster)
    assert founder is not None, "only a founder sends parameters"
    founder.move_to(Phase.LIVE)
    if recovery is None:
        run.found()
        run.relay.subscribe(founder, now)
    else:
        continue_run(run, recovery, now)
        founder.updates = InOrder(run.accepted(founder.rank) + 1)
    text = f"run {run.name!r} begins with {run.parameters} parameters"
    run.journal.note(Happening.BEGAN, text, run=run.name, at=now)
    _sync_waiting(run, recovery, roster, now)


def _sync_waiting(run: Run, recovery: RunRecovery | None, roster: Roster, now: float) -> None:
    """Send the parameters to all members that wait for them."""
    run.recovery = run.local_copy = None
    for other in roster:
        if other.phase is not Phase.WAITING:
            continue
        other.updates = InOrder(run.accepted(other.rank) + 1)
        if (
            recovery is not None
            and other in recovery.returned
            and may_keep_replica(other, run, recovery)
        ):
            welcome_back(other, run, roster, now)
        else:
            _sync(other, run, roster, now)


def found_again(run: Run, roster: Roster, now: float) -> bool:
    """Continue without a member that was removed; return whether that is possible.

    If the founder was removed, the next worker is asked. If all workers that had a run are lost
    while it is recovered, the master waits for them again. Continuing is not possible if the heir
    was removed and others have been asked for updates: no update can be requested twice.
    """
    if run.founded:
        return True
    recovery = run.recovery
    if recovery is not None:
        recovery.retain(roster)
        if recovery.gathering:
            return True
        if recovery.heir in recovery.returned:
            return True
        nobody_has_it = not recovery.returned and run.local_copy is None
        if nobody_has_it and recovery.heir is not None and recovery.times_lost < TIMES_LOST_MAX:
            recovery.times_lost += 1
            recovery.restart(now)
            logger.warning(
                "all workers that had run %r were lost; they may come back within %g s",
                run.name,
                recovery.seconds,
            )
            return True
        if not roster.workers:
            return False
        if not nobody_has_it:
            recover(run, roster, now)
            return True
        run.recovery = None
        logger.warning("no worker that had run %r comes back: it begins with a new one", run.name)
    elif _founder_of(roster) is not None:
        return True
    heir = next(iter(roster.workers), None)
    if heir is None:
        return False
    run.restart_founding(heir.join)
    _ask_to_found(heir, run, roster)
    return True


def _founder_of(roster: Roster) -> Member | None:
    return next((member for member in roster if member.phase is Phase.FOUNDING), None)


def _ask_to_found(member: Member, run: Run, roster: Roster) -> None:
    """Ask a worker for the parameters that start the run."""
    member.move_to(Phase.FOUNDING)
    recovery = run.recovery
    if recovery is None:
        _welcome(member, run, roster, founder=True)
    else:
        place = Place(recovery.log, recovery.after)
        _welcome(member, run, roster, founder=True, place=place)


def _sync(member: Member, run: Run, roster: Roster, now: float) -> None:
    """Send a worker the run's parameters: all of them, or the blocks that differ from its own."""
    member.move_to(Phase.SYNCING)
    partial = member.join.partial
    has_part = partial is not None and run.relay.log.has_after(partial)
    compares = has_part or member.join.resume is not None
    copy = run.copy()
    if not compares:
        _welcome(member, run, roster)
        member.feed = SnapshotFeed(copy.block, copy, member.link)
    elif has_part:
        assert partial is not None
        _welcome(member, run, roster, compares=True, resumed=True)
        offer(member, copy, now)
        run.relay.subscribe(member, now, partial.position, pauses=True)
        return
    else:
        _welcome(member, run, roster, compares=True)
        offer(member, copy, now)
    run.relay.subscribe(member, now)


def _welcome(
    member: Member,
    run: Run,
    roster: Roster,
    *,
    founder: bool = False,
    resumed: bool = False,
    compares: bool = False,
    place: Place | None = None,
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
            place=place or run.relay.log.place,
            versions=dict(run.relay.versions),
            mode=run.mode,
            resumed=resumed,
            term=run.leadership.term,
            standby=run.leadership.other,
            compares=compares,
            buffers=len(run.buffers) - (resumed and member.rank in run.buffers),
        )
    )
