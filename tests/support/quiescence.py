"""What has to be true of a history at quiescence: nobody trains, nothing goes wrong any more.

Every function raises `AssertionError`, and says first which invariant is broken:

- waits: all who are alive come to rest within `CALM_SECONDS` of virtual time;
- acknowledged: no update is missing that a worker has sent who is alive, or that was acknowledged
  to one that died;
- contributed: in a mode with rounds, their results contain each contribution once;
- bits: master and workers have the same replica, the sum of all updates in it, each once;
- buffers: what is averaged is in the range of what was sent, and all end with the same mean;
- conservation: what a worker's steps changed, it has sent or still has;
- left: a worker that has finished has sent its whole residual;
- memory: see `support.bounds`.

That no update is applied twice, `Ledger` has watched all the time; and `Leads`, that with a bound
on staleness nobody is too far ahead, or waits too long.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from gradwire_server.state.roster import Phase
from gradwire_server.state.run import Run
from support.histories import History
from support.simulated_buffers import check_the_end
from support.trainee import Trainee
from support.training import MASTER

CALM_SECONDS: Final = 120.0
"""A worker dials every second, a master that was started anew waits for some seconds, and a process
that was stopped or was not found to be dead costs an idle timeout or two."""

LOOK_SECONDS: Final = 0.25
"""How often it is looked whether all is well."""


def come_to_rest(history: History) -> None:
    """End all faults, wait until nothing has to be done any more, and check what then holds."""
    history.end_all_faults()
    history.is_training = False
    if not history.processes and not any(machine.is_to_start for machine in history.machines):
        history.start_later(history.new_machine(), 0.0)
    _wait(history, lambda: _unrest_of(history))
    check(history, _run_of(history), history.live)


def finish(history: History) -> None:
    """Let all workers finish, and check that nothing is left that waits."""
    network, finishing = history.network, history.live
    for process in finishing:
        network.after(0.3 * history.random.random(), process.finish)
    _wait(
        history,
        lambda: [
            f"{p.name} has not finished"
            for p in finishing
            if p.host.alive and not p.try_to_complete()
        ],
    )
    finishing = [p for p in finishing if p.host.alive]  # but for who was refused: it was too late
    run = history.founded  # the master drops it once all have left
    assert run is not None
    check(history, run, finishing)
    check_the_end(
        run,
        [process.module for process in finishing if process.module is not None],
        [process.rank for process in finishing if process.module is not None],
    )
    for process in () if history.has_optimizer else finishing:  # gradients end in no step
        if process.ends_with_a_residual:
            continue
        left = np.abs(process.residual_at_the_end).max() / float(process.replica.quantum)
        assert left <= 1.0, f"left: {process.name} has finished with {left:g} quanta unsent"
    parameters = {process.feedback.parameters.tobytes() for process in finishing}
    assert len(parameters) == 1, "bits: the workers end with different parameters"
    _wait(history, lambda: [f"{p.name} has not left" for p in finishing if not p.closed])
    for process in finishing:
        assert process.error is None, f"waits: {process.name} could not leave: {process.error}"
    _wait(history, lambda: _remains_of(history))


def check(history: History, run: Run, workers: Sequence[Trainee]) -> None:
    """Check what holds at quiescence."""
    versions = run.relay.versions
    for rank, sequence in history.required.items():
        assert versions.get(rank, 0) >= sequence, (
            f"acknowledged: updates {versions.get(rank, 0) + 1} to {sequence} of rank {rank} are "
            "missing"
        )
    if run.rounds is not None:
        history.round_accounts.check(versions)
    relayed = run.relayed(versions)
    everything = (
        history.initial + history.ledger.sum_of(relayed, history.replica_elements)
    ).tobytes()
    assert run.replica.values.tobytes() == everything, f"bits: {MASTER} has another replica"
    for worker in workers:
        for rank, sequence in relayed.items():
            for each in range(1, sequence + 1):
                times = history.ledger.applied[worker.name, rank, each]
                assert times == 1, f"once: {worker.name} applied {rank}/{each} {times} times"
        assert worker.replica.values.tobytes() == everything, (
            f"bits: {worker.name} has another replica"
        )
        assert worker.replica.digest() == run.replica.digest(), f"bits: digest of {worker.name}"
        try:
            history.check_conservation(worker)
        except AssertionError:
            raise AssertionError(
                f"conservation: {worker.name} has neither sent nor kept all that it trained"
            ) from None
    log = sum(segment.nbytes for segment in run.relay.log)
    assert log == run.relay.log.nbytes <= history.plan.log_bytes_max, f"memory: {log} bytes logged"


def _run_of(history: History) -> Run:
    run = history.master.run
    assert run is not None
    return run


def _wait(history: History, lacks: Callable[[], list[str]]) -> None:
    network = history.network
    end = network.now + CALM_SECONDS
    while missing := lacks():
        if network.now >= end:
            _check_acknowledged(history)
            raise AssertionError(f"waits: after {CALM_SECONDS:g} s, " + "; ".join(missing))
        network.run_for(LOOK_SECONDS)


def _check_acknowledged(history: History) -> None:
    """Check that the run has what workers were told that it has."""
    run = history.master.run
    versions = {} if run is None else run.relay.versions
    for process in history.processes:
        if process.takes_part and process.masters == [history.masters]:
            last = versions.get(process.rank, 0)
            assert process.acknowledged <= last, (
                f"acknowledged: update {last + 1} of {process.name} is not in the run, which has "
                f"{versions}"
            )


def _unrest_of(history: History) -> list[str]:
    """Return what is still to happen."""
    if not history.master_host.alive:
        return ["there is no master"]
    starting = [f"{m.name} is about to begin" for m in history.machines if m.is_to_start]
    leaving = [
        f"{worker.name} leaves"
        for worker in history.workers
        if worker.leaving and not worker.closed and worker.host.alive
    ]
    run, processes = history.master.run, history.processes
    if starting or leaving or run is None:
        return [*starting, *leaving, "" if run else "there is no run"]
    versions = run.relay.versions
    unsettled = [
        f"{p.name} has {p.versions} and keeps {len(p.worker.own_updates)}, "
        f"lost {p.lost}; {MASTER} has {versions}"
        for p in processes
        if not p.is_settled(versions)
    ]
    phases = [member.phase.name for member in history.master.roster]
    if phases != [Phase.LIVE.name] * len(processes):
        unsettled.append(f"of {len(processes)} workers, the roster has {phases}")
    if run.rounds is not None and run.rounds.opened_at is not None:
        unsettled.append(f"a round waits for ranks {run.rounds.awaited - run.rounds.complete}")
    if history.master.unstable:
        unsettled.append(f"{history.master.unstable} updates are not stable")
    return unsettled + history.unrest()


def _remains_of(history: History) -> list[str]:
    """Return what would still happen after everyone has left."""
    remains = []
    if history.master.run is not None:
        remains.append("the run is not over")
    if len(history.master_endpoint):
        remains.append(f"{len(history.master_endpoint)} connections are open at {MASTER}")
    if (timer := history.master.next_timer()) is not None:
        remains.append(f"{MASTER} waits until {timer}")
    alive = [worker for worker in history.workers if worker.host.alive]
    waiting = [worker.name for worker in alive if worker.endpoint.next_timer() is not None]
    return [*remains, *(f"{name} waits for something" for name in waiting)]
