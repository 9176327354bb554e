"""Admission: whether a worker may join, and the reasons for refusals."""

from typing import Final

from gradwire_protocol import InvalidMessageError, Role, UsageError
from gradwire_protocol.messages.admission import CODEC_VERSION, Join, RefusalCode, Refuse, Resume
from gradwire_protocol.messages.modes.kept_state import ANY
from gradwire_protocol.messages.modes.mode import Mode, parse_mode
from gradwire_server.config import MasterConfig
from gradwire_server.state.roster import Roster
from gradwire_server.state.run import Run
from gradwire_server.state.state import State
from gradwire_server.updates.optimizer import keeper_of, layout_of

HOW_TO_END: Final = (
    "end that run: `gradwire operate end-run`, or start the master anew with --new-run"
)
"""What can be done about a run that is in the way."""


def refusal_by_role(
    role: Role, run: Run | None, *, draining: bool, stopping: str | None = None
) -> Refuse | None:
    """Return why no peer with this role may join now; None where one may.

    `draining` is by order of an operator; `stopping` is the reason why the master is about to end.
    """
    if stopping is not None:
        return Refuse(RefusalCode.DRAINING, f"{stopping}: nobody is let in any more")
    if role is Role.STANDBY:
        return Refuse(
            RefusalCode.ROLE,
            "a standby's key is for a standby (gradwire master --standby-of), not for joining: use "
            "the key of a worker or an observer",
        )
    if role is Role.RELAY:
        return Refuse(
            RefusalCode.ROLE,
            "a relay's key is for a relay (gradwire relay --of), not for joining: use the key of a "
            "worker or an observer",
        )
    if draining:
        return Refuse(
            RefusalCode.DRAINING,
            "an operator drains this master: nobody is let in any more, and it stops when the last "
            "worker has left. `gradwire operate resume` lets workers in again",
        )
    if role is Role.OBSERVER and (run is None or not run.founded):
        return Refuse(
            RefusalCode.NO_RUN,
            "there is no run to observe: an observer's parameters never begin one. Try again when "
            "a worker has joined",
        )
    return None


def refusal(join: Join, state: State, run: Run | None) -> Refuse | None:
    """Return why a request to join the run in progress, or a new one, is refused; None if not."""
    config, members = state.config, state.totals.members()
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
    if members >= config.workers_max:
        return Refuse(
            RefusalCode.RUN_FULL,
            f"{members} workers take part, which is the limit: start the master with a larger "
            "--workers-max",
        )
    if run is not None:
        return _refusal_by_run(join, run, state.roster)
    if config.mode is not None:
        insists = parse_mode(config.mode)
        if join.mode is not None and not insists.allows(join.mode):
            return _other_mode(join.mode, "this master was started with", config.mode)
        if join.mode is None and insists.optimizer_state == ANY:
            return Refuse(
                RefusalCode.OTHER_MODE,
                f"this master was started with mode {config.mode}, and a run's first worker has to "
                "say what its optimizer keeps: pass optimizer=optimizer and "
                "mode=gradwire.Averaging(..., optimizer_state=True) to join, or set GRADWIRE_MODE",
            )
    return _refusal_by_size(join, state)


def mode_of(join: Join, config: MasterConfig) -> Mode:
    """Return the mode of the run that a worker begins."""
    return join.mode or (parse_mode(config.mode) if config.mode is not None else Mode())


def _refusal_by_size(join: Join, state: State) -> Refuse | None:
    config, mode = state.config, mode_of(join, state.config)
    try:
        elements = layout_of(join.layout, mode).elements
    except UsageError as error:
        return Refuse(RefusalCode.TOO_LARGE, str(error))
    others = state.totals.elements(without=state.run)
    if elements + others <= config.parameters_max:
        return None
    beside = f", beside the {others} of its other runs" if others else ""
    with_state = ""
    if mode.has_state:
        with_state = f", and with the state of {keeper_of(mode)} they are {elements}"
    return Refuse(
        RefusalCode.TOO_LARGE,
        f"the model has {join.layout.elements} parameters, the master takes "
        f"{config.parameters_max}{beside}{with_state}: start it with a larger --parameters-max",
    )


def _refusal_by_run(join: Join, run: Run, roster: Roster) -> Refuse | None:
    if join.run is not None and join.run != run.name:
        if run.awaits_workers:
            return Refuse(
                RefusalCode.OTHER_RUN,
                f"run {run.name!r} was resumed from a checkpoint and waits for its workers, not "
                f"{join.run!r}: join run {run.name!r}, or {HOW_TO_END}",
            )
        return Refuse(
            RefusalCode.OTHER_RUN,
            f"run {run.name!r} is in progress, not {join.run!r}, and a master with a standby "
            f"serves one run: wait for its end, start another master, or {HOW_TO_END}",
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
    if join.mode is not None and join.mode != run.mode:
        return _other_mode(join.mode, f"run {run.name!r} has", run.mode)
    difference = run.difference(join.layout)
    if difference is not None:
        return Refuse(
            RefusalCode.OTHER_LAYOUT,
            f"the model differs from that of run {run.name!r}: {difference}. Train the same model, "
            f"begin a run of another name (run='...' or GRADWIRE_RUN), or {HOW_TO_END}",
        )
    return None


def _other_mode(asked: Mode | None, who: str, mode: object) -> Refuse:
    return Refuse(
        RefusalCode.OTHER_MODE,
        f"mode {asked} was asked for, and {who} mode {mode}: leave out mode= and GRADWIRE_MODE to "
        f"take that one, begin a run of another name, or {HOW_TO_END}",
    )


def finished_without(run: str) -> Refuse:
    """Return the refusal for a worker that returns after all others have finished its run."""
    return Refuse(
        RefusalCode.RUN_FINISHED,
        f"run {run!r} was finished by its other workers while nothing was heard of this one: "
        "changes that it had not sent are not in the run. The others have the final parameters; "
        "workers that join again begin another run",
    )


def _has_all_accepted(join: Join, run: Run) -> bool:
    """Return whether a returning worker has no update left to send."""
    resume = join.resume
    return resume is not None and resume.sequence == run.accepted(resume.rank)


def not_expected(config: MasterConfig) -> Refuse:
    """Return the refusal for a returning worker that has no lease, or no longer."""
    return Refuse(
        RefusalCode.NOT_EXPECTED,
        "this master keeps no place for this worker: it was away for longer than "
        f"{config.rejoin_seconds:g} s, or its run is over. Join again, as a new worker",
    )


def of_an_earlier_run() -> Refuse:
    """Return the refusal for a worker that returns to a master which was to begin a new run."""
    return Refuse(
        RefusalCode.NOT_EXPECTED,
        "this master was started with --new-run, and lets nobody of an earlier run back in. Join "
        "again, as a new worker",
    )


def check_claims(resume: Resume, run: Run) -> None:
    """Raise `InvalidMessageError` for a returning worker whose claims cannot be true.

    It must have as many updates of its own as the master has accepted, and no more of the log than
    there is: its replica could never become equal to the others'.
    """
    accepted, log, place = run.accepted(resume.rank), run.relay.log, resume.place
    if resume.sequence < accepted:
        raise InvalidMessageError(
            f"returns as rank {resume.rank} with {resume.sequence} updates sent; {accepted} were "
            "accepted"
        )
    if place.log.id == log.name.id and place.position > log.head:
        raise InvalidMessageError(
            f"returns with the log up to position {place.position}; it ends at {log.head}"
        )


def no_memory_for(join: Join) -> Refuse:
    """Return the refusal for a worker whose model does not fit this machine's memory."""
    return Refuse(
        RefusalCode.TOO_LARGE,
        f"the model has {join.layout.elements} parameters, for which the master's machine has not "
        "enough memory: run the master on a larger one",
    )
