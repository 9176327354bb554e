"""Recovery: a restarted master takes the log and the replica of the most advanced worker.

`restart` says which one, and what is missing. What the worker keeps of the log is stored until its
replica is here, too; then the run continues, and the log begins with what was stored.
"""

import logging

from gradwire_codecs import MalformedUpdateError, Update
from gradwire_protocol import InvalidMessageError
from gradwire_protocol.messages.admission import Place
from gradwire_protocol.messages.link import EntriesReceived
from gradwire_server.log.segments import Segment
from gradwire_server.state.restart import RunRecovery
from gradwire_server.state.roster import Member
from gradwire_server.state.run import Run

logger = logging.getLogger("gradwire.master")


def store_entries(member: Member, received: EntriesReceived, run: Run, now: float) -> None:
    """Store entries of the log that the heir keeps.

    Raises `InvalidMessageError` if the worker was not asked for them, or they do not fit the run.
    """
    recovery = run.recovery
    if recovery is None or recovery.heir is not member:
        raise InvalidMessageError(f"{member.name} sent entries of the log that nobody asked for")
    recovery.deadline = now + recovery.seconds
    assembly, segments = recovery.assembly, recovery.segments
    assembly.add(received.entries, received.number)
    while (stop := assembly.after(recovery.reached)) is not None:
        span, bodies, _ = assembly.take(stop)
        # What comes first may begin before that: the heir has a sum of it.
        has_gap = bool(segments) and span.start != recovery.reached
        if has_gap or not recovery.reached < stop <= recovery.start.position:
            raise InvalidMessageError(
                f"{member.name} sent the log from {span.start} to {stop}, and was asked for what "
                f"comes after {recovery.reached}, up to {recovery.start.position}"
            )
        try:
            segment = Segment.received(
                stop, span, bodies, recovery.versions, run.layout.elements, now
            )
        except MalformedUpdateError as error:
            raise InvalidMessageError(
                f"{member.name} sent entries of the log up to {stop}: {error}"
            ) from None
        segment.forget_decoded()
        segments.append(segment)
        recovery.versions.update(segment.after)


def continue_run(run: Run, recovery: RunRecovery, now: float) -> None:
    """Continue a run with the replica that is here.

    The heir is sent what comes next; the caller admits the other workers.
    """
    if recovery.heir is None:
        assert run.local_copy is not None
        run.adopt(run.local_copy)
        log = run.relay.log
        log.name = log.name.continued(log.head, now)
    else:
        contents, segments = recovery.contents, recovery.segments
        assert contents is not None
        place = Place(recovery.log, recovery.start.position)
        run.relay.start_from(place, contents, segments, recovery.stable)
        said = recovery.returned[recovery.heir]
        if contents.get(said.rank, 0) > said.versions.get(said.rank, 0):
            # Its replica has updates of its own that it does not keep, and that no log has.
            recovery.lost |= recovery.returned.keys() - {recovery.heir}
        run.relay.subscribe(recovery.heir, now)
    run.recovered = run.must_repeat_stable = True
    owners = {member.rank: member for member in recovery.returned}
    run.unclaimed = (run.relay.versions.keys() | recovery.known) - owners.keys()
    if not run.mode.has_rounds:
        for owner in owners.values():
            _skip_lost(run, recovery, owner)
    if recovery.heir is not None:
        if recovery.needs_last_results:
            run.last_results = _last_results(recovery, run)
        run.found()
    else:
        run.begin_rounds()


def may_keep_replica(member: Member, run: Run, recovery: RunRecovery) -> bool:
    """Return whether a worker can go on with its replica: it is sent what that lacks."""
    return member not in recovery.lost and can_follow(member, run)


def can_follow(member: Member, run: Run) -> bool:
    """Return whether the log has all that a returning worker lacks, in a form that it can take.

    It has to subtract its own updates from a sum, so it has to keep these.
    """
    resume, log = member.join.resume, run.relay.log
    if resume is None or not log.has_after(resume.place):
        return False
    keeps_own = resume.kept_from <= resume.versions.get(member.rank, 0) + 1
    return keeps_own or run.mode.has_rounds or resume.place.position == log.head


def _last_results(recovery: RunRecovery, run: Run) -> list[list[Update]]:
    """Return the updates of the last results, as far as the log has these by themselves."""
    results: list[list[Update]] = []
    # Of the first one, some may be missing.
    part: list[Update] | None = None if recovery.after else []
    for segment in recovery.segments:
        if segment.body is None:
            results, part = [], None
            continue
        if part is not None:
            part.append(segment.decoded(run.layout.elements))
        if segment.closes:
            results += [] if part is None else [part]
            part = []
    return results[-run.mode.results_kept :]


def _skip_lost(run: Run, recovery: RunRecovery, owner: Member) -> None:
    """Skip updates that no worker has any more, not even their origin."""
    accepted = run.accepted(owner.rank)
    kept_from = recovery.returned[owner].kept_from
    if kept_from <= accepted + 1:
        return
    recovery.lost.add(owner)
    logger.error(
        "updates %d to %d of %s are lost: it does not keep them any more, and no returned worker "
        "has them",
        accepted + 1,
        kept_from - 1,
        owner.name,
    )
    run.skip_to(owner.rank, kept_from - 1)
