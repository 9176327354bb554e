"""Admission: who may join, and what to tell those who may not."""

from gradwire_protocol import InvalidMessageError, Role
from gradwire_protocol.messages.admission import CODEC_VERSION, Join, RefusalCode, Refuse, Resume
from gradwire_protocol.messages.fields import covers
from gradwire_server.config import MasterConfig
from gradwire_server.state.roster import Roster
from gradwire_server.state.run import Run


def refusal_by_role(
    role: Role, run: Run | None, *, draining: bool, stopping: str | None = None
) -> Refuse | None:
    """Return why nobody with this role may join now, whatever it asks for; None where one may.

    Parameters
    ----------
    role : Role
        What its key says it may do.
    run : Run or None
        The run in progress.
    draining : bool
        Whether an operator has said that nobody is let in any more.
    stopping : str or None
        Why the master is about to end, if it is.
    """
    if role is Role.OPERATOR:
        return Refuse(
            RefusalCode.ROLE,
            "an operator's key is for orders (gradwire operate), not for joining: use the key of a "
            "worker or an observer",
        )
    if stopping is not None:
        return Refuse(RefusalCode.DRAINING, f"{stopping}: nobody is let in any more")
    if role is Role.STANDBY:
        return Refuse(
            RefusalCode.ROLE, "a standby's key is for a standby (gradwire master --standby-of)"
        )
    if draining:
        return Refuse(
            RefusalCode.DRAINING,
            "an operator drains this master: nobody is let in any more, and it stops when the last "
            "worker has left",
        )
    if role is Role.OBSERVER and (run is None or not run.founded):
        return Refuse(
            RefusalCode.NO_RUN,
            "there is no run to observe: an observer's parameters never begin one. Try again when "
            "a worker has joined",
        )
    return None


def refusal(join: Join, config: MasterConfig, run: Run | None, roster: Roster) -> Refuse | None:
    """Return why a worker may not join, or None where it may.

    Parameters
    ----------
    join : Join
        Its request.
    run : Run or None
        The run in progress.
    roster : Roster
        Who takes part in it.
    """
    if join.codec != CODEC_VERSION:
        return Refuse(
            RefusalCode.OTHER_CODEC,
            f"the worker encodes updates in format {join.codec}, the master reads "
            f"{CODEC_VERSION}: install the same version of gradwire on both",
        )
    if config.run is not None and join.run not in (None, config.run):
        return Refuse(
            RefusalCode.OTHER_RUN,
            f"this master serves run {config.run!r} only, not {join.run!r}",
        )
    if len(roster) >= config.workers_max:
        return Refuse(
            RefusalCode.RUN_FULL,
            f"{len(roster)} workers take part, which is the limit: start the master with a larger "
            "--workers-max",
        )
    if join.layout.elements > config.parameters_max:
        return Refuse(
            RefusalCode.TOO_LARGE,
            f"the model has {join.layout.elements} parameters, the master takes "
            f"{config.parameters_max}: start it with a larger --parameters-max",
        )
    return None if run is None else _refusal_by_run(join, run, roster)


def _refusal_by_run(join: Join, run: Run, roster: Roster) -> Refuse | None:
    if join.run is not None and join.run != run.name:
        if run.awaited:
            return Refuse(
                RefusalCode.OTHER_RUN,
                f"run {run.name!r} was resumed from a checkpoint and waits for its workers, not "
                f"{join.run!r}: name that one, or start the master without --resume",
            )
        return Refuse(
            RefusalCode.OTHER_RUN,
            f"run {run.name!r} is in progress, not {join.run!r}: wait for its end, or start "
            "another master on another port",
        )
    if run.finished and not _has_all_accepted(join, run):
        if join.resume is not None:
            return finished_without(run.name)
        return Refuse(
            RefusalCode.RUN_FINISHED,
            f"run {run.name!r} has just finished and its workers are leaving: try again",
        )
    twin = roster.with_id(join.worker_id)
    if twin is not None:
        return Refuse(RefusalCode.ALREADY_JOINED, f"this worker takes part already, as {twin.name}")
    difference = run.layout.difference(join.layout)
    if difference is not None:
        return Refuse(
            RefusalCode.OTHER_LAYOUT,
            f"the model differs from that of run {run.name!r}: {difference}. Train the same model, "
            "start another master, or name another run once this one is over",
        )
    return None


def finished_without(run: str) -> Refuse:
    """Return what to tell a worker that is back after all others have finished its run."""
    return Refuse(
        RefusalCode.RUN_FINISHED,
        f"run {run!r} was finished by its other workers while nothing was heard of this one: what "
        "it had not sent is not in it. They have its parameters; to join again, as a new worker, "
        "begins another run",
    )


def _has_all_accepted(join: Join, run: Run) -> bool:
    """Return whether somebody is back who has nothing to send any more."""
    resume = join.resume
    return resume is not None and resume.sequence == run.relay.versions.get(resume.rank, 0)


def not_expected(config: MasterConfig) -> Refuse:
    """Return what to tell a worker that is back, and that the master does not know any more."""
    return Refuse(
        RefusalCode.NOT_EXPECTED,
        "this master keeps no place for this worker: it was away for longer than "
        f"{config.rejoin_seconds:g} s, or its run is over. Join again, as a new worker",
    )


def is_behind(resume: Resume, run: Run) -> bool:
    """Return whether a run contains everything that somebody has who is back."""
    versions = run.relay.versions
    return resume.sequence <= versions.get(resume.rank, 0) and covers(versions, resume.versions)


def check_claims(resume: Resume, run: Run) -> None:
    """Raise `InvalidMessageError` for a worker that claims to have what nobody has sent.

    What it says decides what it is sent, and nothing else; but a replica with updates that the
    run does not have could never become equal to the others'.
    """
    versions = run.relay.versions
    accepted = versions.get(resume.rank, 0)
    if resume.sequence < accepted:
        raise InvalidMessageError(
            f"back as rank {resume.rank} after update {resume.sequence}; {accepted} were accepted"
        )
    for rank, sequence in resume.versions.items():
        if run.recovered:
            break  # it may have had updates that the run has lost
        if sequence > versions.get(rank, 0):
            raise InvalidMessageError(
                f"back with update {sequence} of rank {rank}; {versions.get(rank, 0)} were accepted"
            )


def no_memory_for(join: Join) -> Refuse:
    """Return what to tell a worker whose parameters are more than this machine can hold."""
    return Refuse(
        RefusalCode.TOO_LARGE,
        f"the model has {join.layout.elements} parameters, for which the master's machine has not "
        "enough memory: run the master on a larger one",
    )
