"""Recalling: a restarted master asks workers for updates that they keep.

`restart` works out for which. An update that comes is stored until the heir's replica is here, too;
then the run continues, and the update log begins with the recalled updates.
"""

import logging
from collections.abc import Mapping

from gradwire_codecs import MalformedUpdateError, Update, decode
from gradwire_protocol import InvalidMessageError
from gradwire_protocol.messages.fields import covers
from gradwire_protocol.messages.kinds import WORKERS_MAX
from gradwire_protocol.messages.link import UpdateReceived
from gradwire_protocol.messages.replicas import Recall
from gradwire_server.state.restart import RunRecovery
from gradwire_server.state.roster import Member
from gradwire_server.state.run import Run

logger = logging.getLogger("gradwire.master")


def recall(recovery: RunRecovery, now: float) -> None:
    """Request all updates that were not requested yet, or only from a worker that has left."""
    recovery.deadline = now + recovery.seconds
    for rank, recalled in recovery.recalled.items():
        if recalled.asked is None or recalled.asked.member not in recovery.returned:
            _send_next_request(recovery, rank)


def store_recalled(member: Member, received: UpdateReceived, run: Run, now: float) -> None:
    """Store a recalled update.

    Raises `InvalidMessageError` if the worker was not asked for it, or it does not fit the run.
    """
    recovery = run.recovery
    assert recovery is not None
    rank, sequence = received.rank, received.update.sequence
    recalled = recovery.recalled.get(rank)
    asked = None if recalled is None else recalled.asked
    if asked is None or asked.member is not member or sequence > asked.last:
        raise InvalidMessageError(
            f"{member.name} sent update {sequence} of rank {rank}, for which it was not asked"
        )
    try:
        decode(received.update.body, run.layout.elements)
    except MalformedUpdateError as error:
        raise InvalidMessageError(
            f"{member.name} sent update {sequence} of rank {rank} again: {error}"
        ) from None
    recovery.deadline = now + recovery.seconds
    for ready in asked.arriving.insert(sequence, received):
        member.link.connection.release(ready.charge)
        recovery.put_update(ready)
        if ready.update.sequence == asked.last:
            _send_next_request(recovery, rank)


def continue_run(run: Run, recovery: RunRecovery, now: float) -> None:
    """Continue a run with the replica that has come, and with the recalled updates beyond it.

    The heir is sent these updates; the caller admits the other workers next.
    """
    owners = {member.rank: member for member in recovery.returned}
    if recovery.heir is None:
        assert run.local_copy is not None
        run.adopt(run.local_copy)
        recovery.contents = dict(run.relay.versions)
    contents = recovery.contents
    assert contents is not None
    run.recovered = run.must_repeat_stable = True
    run.unclaimed = (contents.keys() | recovery.known) - owners.keys()
    for rank, recalled in recovery.recalled.items():
        if recalled.reached < contents.get(rank, 0):  # the log must not begin with a gap
            recalled.base, recalled.updates = contents[rank], []
    beyond = _begin_log(run, recovery, contents, now)
    if recovery.heir is not None:
        run.relay.subscribe(recovery.heir, now)
    for received in beyond:
        if received.update.sequence == run.relay.next_sequence(received.rank):
            _add(run, received, now)
    for rank in recovery.recalled:
        _skip_lost(run, recovery, rank, owners.get(rank))
    if recovery.needs_last_result and recovery.heir is not None:
        run.last_results = _last_results(recovery, run)
    run.begin_rounds()


def _begin_log(
    run: Run, recovery: RunRecovery, contents: Mapping[int, int], now: float
) -> list[UpdateReceived]:
    """Start the log with updates that the replica contains; return the others, in order."""
    if recovery.heir is not None:
        bases = {rank: recalled.base for rank, recalled in recovery.recalled.items()}
        run.relay.start_from({**contents, **bases}, _stable(recovery, contents))
    beyond: list[UpdateReceived] = []
    for rank, recalled in recovery.recalled.items():
        for received in recalled.updates:
            if received.update.sequence > contents.get(rank, 0):
                beyond.append(received)
            else:
                run.relay.accept(rank, received.update, received.message, now)
    if recovery.heir is not None:
        run.found()
    return beyond


def _last_results(recovery: RunRecovery, run: Run) -> list[list[Update]]:
    """Return the updates of the last results that the replica contains, as far as they are here."""
    results: list[tuple[int, list[UpdateReceived]]] = []
    for recalled in recovery.recalled.values():
        part: list[UpdateReceived] = []
        is_whole = recalled.base == 0
        for received in recalled.updates:
            part.append(received)
            if received.update.closes:
                if is_whole:
                    results.append((received.update.based_on, part))
                part, is_whole = [], True
    results.sort(key=lambda each: each[0])
    elements = run.layout.elements
    return [
        [decode(each.update.body, elements) for each in result]
        for _, result in results[-run.mode.results_kept :]
    ]


def _stable(recovery: RunRecovery, contents: Mapping[int, int]) -> dict[int, int]:
    """Return by worker's rank which contributions are in a result that all have who are back.

    Workers that lack more results than the log will have do not count: they are sent a replica.
    """
    if not recovery.has_rounds:
        return {}
    bases = {rank: recalled.base for rank, recalled in recovery.recalled.items()}
    keep = {
        member: said.versions
        for member, said in recovery.returned.items()
        if covers(said.versions, bases)
    }
    return {
        rank: min(
            (
                versions.get(rank, sequence)
                for member, versions in keep.items()
                if member.rank != rank or len(keep) == 1
            ),
            default=sequence,
        )
        for rank, sequence in contents.items()
        if rank < WORKERS_MAX
    }


def may_keep_replica(member: Member, run: Run, recovery: RunRecovery) -> bool:
    """Return whether the update log can make a worker's replica equal to the run's.

    The replica must contain no updates of others that the run lacks, and the log must have all
    updates that the replica lacks.
    """
    resume, versions = recovery.returned[member], run.relay.versions
    return (
        member.rank not in recovery.gaps
        and run.relay.can_catch_up(
            resume.versions, without=member.rank, kept_from=recovery.kept_from(member, member.rank)
        )
        and all(
            sequence <= recovery.gaps.get(rank, versions.get(rank, 0))
            for rank, sequence in resume.versions.items()
        )
    )


def _send_next_request(recovery: RunRecovery, rank: int) -> None:
    recalled = recovery.recalled[rank]
    asked = recovery.next_request(rank)
    if asked is not None:
        asked.member.link.send(Recall(rank, recalled.reached + 1, asked.last))


def _add(run: Run, received: UpdateReceived, now: float) -> None:
    """Add an update to the replica, unless an element would leave its range."""
    update = decode(received.update.body, run.layout.elements)
    try:
        run.apply_update(received.rank, update)
    except MalformedUpdateError as error:
        logger.error(  # noqa: TRY400  # it says it all
            "updates of rank %d from %d on are lost: %s",
            received.rank,
            received.update.sequence,
            error,
        )
        return
    run.relay.accept(received.rank, received.update, received.message, now, update)


def _skip_lost(run: Run, recovery: RunRecovery, rank: int, owner: Member | None) -> None:
    """Skip updates that no worker has any more, not even their origin."""
    reached = run.relay.versions.get(rank, 0)
    if owner is None or recovery.kept_from(owner, rank) <= reached + 1:
        return
    recovery.gaps[rank] = reached
    kept_from = recovery.kept_from(owner, rank)
    logger.error(
        "updates %d to %d of %s are lost: it does not keep them any more, and no returned worker "
        "has them",
        reached + 1,
        kept_from - 1,
        owner.name,
    )
    run.skip_to(rank, kept_from - 1)
