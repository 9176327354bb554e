"""`History`: a run with a master and workers in which everything goes wrong, from one seed.

A `Plan` says what happens: acts in which workers train while faults strike. At the end of each act
the faults are over; then all who are alive have to come to the same bits, with everything in them
that was ever acknowledged. In the end they finish, and nothing must be left that waits.

``python tests/simulation SEED`` shows one history.
"""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final

from gradwire.errors import ConnectionLostError
from gradwire_protocol.errors import RefusedError
from gradwire_protocol.limits import GIB
from gradwire_protocol.messages.admission import RefusalCode
from gradwire_protocol.messages.fields import covers
from gradwire_server.checkpoints.resuming import RESUME_AUTO, resumed_runs
from gradwire_server.checkpoints.writer import CheckpointWriter
from gradwire_server.config import MasterConfig
from gradwire_server.state.run import Run
from support.bounds import Bounds
from support.cuts import Cuts
from support.disk import FOLDER, SimulatedDisk, SimulatedWriter
from support.faults import Direction
from support.gaps import may_cut_off
from support.keyed import RUN_KEY
from support.leads import Leads
from support.ledger import Ledger
from support.network import Host
from support.plans import Plan
from support.trace import Trace
from support.trainee import Machine, Trainee
from support.training import MASTER, SimulatedRun

RECOVERY_SECONDS: Final = 8.0
"""How long a master that was started anew waits for all: with a third of all datagrams lost, a
worker takes some seconds to come back."""

CHECKPOINTS_KEPT: Final = 2
WORKERS_SPARE: Final = 64
"""Room for those who join late, and those who died and were not missed yet."""


class History(SimulatedRun):
    """A run in which a plan is carried out.

    Parameters
    ----------
    plan : Plan
    trace : Trace
    """

    def __init__(self, plan: Plan, trace: Trace) -> None:
        self.plan = plan
        self.trace = trace
        self.machines: list[Machine] = []
        self.bounds = Bounds()
        self.required: dict[int, int] = {}
        """By rank: what must be there at quiescence, whatever becomes of its worker."""
        self.disk = SimulatedDisk(Random(plan.seed)) if plan.checkpoint_seconds else None
        self.writer: SimulatedWriter | None = None
        self.cuts = Cuts(MASTER)
        self._ambush: tuple[int, float, Callable[[], None]] | None = None
        """Behind which update something happens, after how many seconds, and what."""
        self.founded: Run | None = None
        """The last run that has got its first parameters."""
        self._has_begun = False
        """Whether any master had the first parameters."""
        self._master_was_lost = False
        self.is_training = True
        """Whether workers train; else they only take what comes."""
        self.buffer_steps = plan.buffer_steps
        self.mode = plan.mode
        self.leads = (
            Leads(plan.staleness_bound, plan.staleness_timeout_seconds)
            if isinstance(plan.staleness_bound, int)
            else None
        )
        super().__init__(
            plan.seed,
            plan.link,
            elements=plan.elements,
            idle_timeout_seconds=plan.idle_seconds,
            master=MasterConfig(
                idle_timeout_seconds=plan.idle_seconds,
                recovery_seconds=RECOVERY_SECONDS,
                stable_interval_seconds=plan.stable_seconds,
                update_log_bytes_max=plan.log_bytes_max,
                checkpoint_seconds=plan.checkpoint_seconds or 60.0,
                workers_max=plan.workers + WORKERS_SPARE,
                reassembly_bytes_max=2 * GIB,
            ),
            run_key=RUN_KEY if plan.sealed else None,
            watches_transport=plan.watched,
        )
        began = self.network.now
        trace.clock = lambda: self.network.now - began
        self.network.gro = plan.gro
        self.network.on_datagram = self._passes
        self._check_transport = self.network.after_turn
        self.network.after_turn = self._after_turn

    # What is to be seen.

    def note(self, who: str, what: str, *values: object) -> None:
        """Note what happens."""
        self.trace.note(who, what, *values)

    @property
    def processes(self) -> list[Trainee]:
        """The workers that are alive and do not leave."""
        alive = [machine.process for machine in self.machines]
        return [process for process in alive if process is not None and not process.leaving]

    @property
    def live(self) -> list[Trainee]:
        """Those of them that have got the parameters."""
        return [process for process in self.processes if process.live]

    @property
    def master_is_whole(self) -> bool:
        """Whether the master lives, and has back what it was started anew for."""
        if self._master_was_lost:
            run = self.master.run
            self._master_was_lost = not (
                self.master_host.alive
                and (run is not None or not self.live)
                and all(
                    process.lost is None
                    and process.masters[-1] == self.masters
                    and run is not None
                    and all(run.relay.versions.get(r, 0) >= s for r, s in self.known_to(process))
                    for process in self.live
                    if not self.is_cut_off(process)
                )
            )
        return not self._master_was_lost

    def is_cut_off(self, process: Trainee) -> bool:
        """Return whether the master cannot hear a worker just now, or it the master."""
        return self.cuts.is_cut_off(process.machine) or process.host.asleep_until > self.network.now

    def name_of(self, host: Host) -> str:
        """Return what a host is called in the trace."""
        return next((p.name for p in self.processes if p.host is host), MASTER)

    def unrest(self) -> list[str]:
        """Return what is still to happen, besides what concerns workers and their master."""
        return []

    # Whom a fault strikes.

    def choose(self, which: float) -> Machine | None:
        """Return one of the machines with a worker that is alive."""
        chosen = self.choose_several(which, 1)
        return chosen[0] if chosen else None

    def choose_several(self, which: float, n: int) -> list[Machine]:
        """Return up to so many of them."""
        machines = [process.machine for process in self.processes]
        first = int(which * len(machines))
        return [*machines[first:], *machines[:first]][:n]

    def choose_host(self, which: float, *, disturbs: bool = False) -> Host | None:
        """Return the host of a worker that is alive, or that of the master.

        With `disturbs`, it may lose its connections by what happens to it.
        """
        hosts = [self.master_host, *(process.host for process in self.processes)]
        host = hosts[int(which * len(hosts))]
        if not host.alive or (disturbs and not may_cut_off(self)):
            return None
        return host

    # What faults do.

    def new_machine(self) -> Machine:
        """Return a machine on which a worker can begin."""
        machine = Machine(f"w{len(self.machines)}")
        self.machines.append(machine)
        return machine

    def start_later(self, machine: Machine, seconds: float) -> None:
        """Let a worker begin on a machine."""
        machine.is_to_start = True
        self.network.after(seconds, partial(self._start, machine))

    def kill_worker(self, machine: Machine) -> None:
        """Let a worker die without a word."""
        process = machine.process
        assert process is not None
        process.note("is killed")
        if process.live and process.masters == [self.masters] and self.master_host.alive:
            # The master has these, and will not lose them because their worker is gone.
            self._require(process.rank, process.acknowledged)
        is_whole = self.master_is_whole
        self.network.kill(process.host)
        if not is_whole:
            self._forget_what_nobody_has()

    def kill_master_for(self, seconds: float, *, power: bool) -> None:
        """Let the master die without a word, and another one begin."""
        self.note(MASTER, "is killed%s", ", its machine has lost power" if power else "")
        self._lose_master(power=power)
        # What some worker has is not lost. What the master alone had is, with its dead worker.
        self.required = self._known()
        self.network.after(seconds, self.start_master)

    def lie_in_ambush(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something a while after the master has passed on the next update.

        Some hear nothing of it from then on.
        """
        self._ambush = self._count_accepted(), seconds, action

    def lose_everybody(self, seconds: float, *, power: bool) -> None:
        """Let all processes die, and begin again with what is on the disk."""
        self.note("everybody", "is killed%s", ", the master by a power failure" if power else "")
        for machine in self.machines:
            process = machine.process
            if process is not None:
                self.network.kill(process.host)
                if not process.leaving:
                    self.start_later(machine, seconds + self.random.random())
        self._lose_master(power=power)
        self.network.after(seconds, partial(self.start_master, from_disk=True))

    def isolate(self, machine: Machine, seconds: float, direction: Direction) -> None:
        """Let nothing through between a machine and the master for a while."""
        self.note(machine.name, "is cut off for %.3f s: %s", seconds, direction)
        self.cuts.cut_off(machine, direction)
        self.network.after(seconds, partial(self._mend, machine, direction))

    def end_all_faults(self) -> None:
        """Let everything work again; who sleeps wakes up at his time."""
        self.note("network", "is well again")
        self.cuts.mend_all()
        self._ambush = None
        self.network.link = self.plan.link
        for host in (self.master_host, *(process.host for process in self.processes)):
            host.slowness = 0.0
        if self.disk is not None:
            self.disk.failure = None

    def move(self, process: Trainee) -> None:
        """Give a worker's machine another address."""
        address = self.cuts.move(process.machine)
        process.note("has the address %s", address)
        self.network.move(process.host, address)

    def on_closed(self, process: Trainee) -> None:
        """Decide whether a worker may have ended, and begin another one perhaps."""
        if process.leaving and process.error is not None:
            self._forget_what_nobody_has()  # the master died while it left
        if process.leaving or process.error is None:
            return
        if _is_too_late(process):
            # Its script ends with the error.
            self.network.kill(process.host)
            return
        assert not process.live, f"{process.name} is out: {process.error}"
        assert isinstance(process.error, ConnectionLostError), (
            f"{process.name} cannot join: {process.error}"
        )
        self.start_later(process.machine, 0.5)

    # The master.

    def start_master(
        self,
        resumed: Run | None = None,
        writer: CheckpointWriter | None = None,
        *,
        from_disk: bool = False,
    ) -> None:
        """Let a master begin, with what it finds on its disk if it looks there."""
        if self.disk is not None:
            with self.disk.mounted():
                looks = from_disk or self.plan.resumes
                found = resumed_runs(RESUME_AUTO if looks else None, FOLDER, self.settings)
                resumed = found[0] if found else None
            before = self.writer
            writer = self.writer = SimulatedWriter(
                self.disk, CHECKPOINTS_KEPT, self.network.after, self.random, self._on_written
            )
            if looks and before is not None and before.written is not None:
                kept = {} if resumed is None else resumed.relay.versions
                assert covers(kept, before.written), (
                    f"a checkpoint with {before.written} was written; found {kept}"
                )
                writer.written = before.written
        initial, self.founded = self.initial, resumed
        super().start_master(resumed, writer)
        self.initial = initial  # the ledger goes back to it
        if self.masters > 1:
            self.runs.begin(self.network.now)
        if from_disk:
            self._begin_with(resumed)
        self.note(MASTER, "begins with %s", None if resumed is None else resumed.relay.versions)

    def _begin_with(self, resumed: Run | None) -> None:
        """Go on after everybody was lost: with less than there was."""
        self.required = {}
        self._master_was_lost = False
        if resumed is None:
            self.ledger = Ledger()
        else:
            self.ledger.cut(resumed.relay.versions)
            relayed = resumed.relayed(resumed.relay.versions)
            expected = self.initial + self.ledger.sum_of(relayed, self.replica_elements)
            assert resumed.replica.values.tobytes() == expected.tobytes(), (
                "bits: a checkpoint is not the sum of the updates that it says it has"
            )

    def _lose_master(self, *, power: bool) -> None:
        self.network.kill(self.master_host)
        self._ambush = None
        self._master_was_lost = True
        if self.writer is not None and self.disk is not None:
            self.writer.die()
            if power:
                self.disk.lose_power()

    def _on_written(self) -> None:
        self.master.handle_progress(self.network.now + self.master_host.ahead)
        self.network.turn(self.master_host)

    # Private.

    def _start(self, machine: Machine) -> None:
        machine.is_to_start = False
        feedback = self.random.choice(["local", "shared"])
        process = Trainee(self, machine, feedback, self.credentials(machine.name))
        self.cuts.enter(machine, process.name)
        machine.processes.append(process)
        self.workers.append(process)

    def _passes(self, source: str, target: str, datagram: bytes) -> bool:
        if source == MASTER and self._ambush is not None:
            self._lie_in_wait(*self._ambush)
        return self.cuts.lets_through(source, target)

    def _lie_in_wait(self, accepted: int, seconds: float, action: Callable[[], None]) -> None:
        """Let some not hear any more what the master says, if it is about to die."""
        if self._count_accepted() > accepted:
            self._ambush = None
            self.cuts.deafen(machine for machine in self.machines if self.random.random() < 0.5)
            self.network.after(seconds, partial(self._spring, action))

    def _spring(self, action: Callable[[], None]) -> None:
        self.cuts.deafen(())
        action()

    def _count_accepted(self) -> int:
        run = self.master.run
        return 0 if run is None else sum(run.relay.versions.values())

    def _mend(self, machine: Machine, direction: Direction) -> None:
        if self.cuts.mend(machine, direction):
            self.note(machine.name, "is cut off no more")

    def _after_turn(self, host: Host) -> None:
        self._check_transport(host)
        self.bounds.check(host)
        run = self.master.run
        if run is not None and run.founded and run is not self.founded:
            self.founded = run
            if not run.recovered or not self._has_begun:
                # Behind a relay, the first worker goes on when that has its parameters: its updates
                # come as soon as these, and the master may be lost before.
                self._has_begun = True
                relayed = run.relayed(run.relay.versions)
                added = self.ledger.sum_of(relayed, self.replica_elements)
                self.initial = run.replica.values - added

    def known_to(self, process: Trainee) -> list[tuple[int, int]]:
        """Return ranks, and the last update of each that a worker has."""
        ranks = {*process.known, process.rank}
        return [(rank, process.received(rank)) for rank in ranks]

    def _known(self) -> dict[int, int]:
        """Return by rank the last update that a worker has which is alive."""
        known: dict[int, int] = {}
        for process in self.live:
            for rank, sequence in self.known_to(process):
                known[rank] = max(known.get(rank, 0), sequence)
        return known

    def _forget_what_nobody_has(self) -> None:
        """Take back what only a worker had that is gone while the master was lost."""
        known = self._known()
        self.required = {rank: min(s, known.get(rank, 0)) for rank, s in self.required.items()}

    def _require(self, rank: int, sequence: int) -> None:
        self.required[rank] = max(self.required.get(rank, 0), sequence)


def _is_too_late(process: Trainee) -> bool:
    """Return whether the others have finished while a worker was away, as the guarantees allow."""
    return (
        process.live
        and isinstance(process.error, RefusedError)
        and process.error.code == RefusalCode.RUN_FINISHED
    )
