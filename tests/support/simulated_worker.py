"""`SimulatedWorker`: a worker on a `SimulatedNetwork`, without threads and without a model.

It is the production code: `Entry`, `Participant` and its features, `Worker`, `Endpoint`. What is
here stands in for the two threads, changes the parameters at random, and keeps the accounts.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gradwire.errors import GradwireError
from gradwire.participant.participant import Participant
from gradwire.replica.waits import Procedure, Wait
from gradwire.session.entry import Entry
from gradwire.settings.settings import Settings
from gradwire.target.parameters import NumpyParameters
from gradwire.target.with_state import Averaged
from gradwire.worker.inbox import Rebase
from gradwire.worker.membership import Membership
from gradwire.worker.sums import Sum
from gradwire_codecs import Feedback, Replica
from gradwire_protocol import Credentials, Endpoint, Role
from gradwire_protocol.messages.admission import CODEC_VERSION, Join, Peer, Welcome
from gradwire_protocol.messages.buffers.layout import Buffers
from gradwire_protocol.messages.fields import WORKER_ID_BYTES, covers
from gradwire_protocol.messages.layout import Layout
from gradwire_protocol.messages.modes.kept_state import KeptState
from gradwire_protocol.messages.replicas import Blocks
from support.accounts_of_worker import WorkerAccounts
from support.dialling import dial
from support.network import Host

if TYPE_CHECKING:
    from support.training import SimulatedRun

CHANGE = 1e-3
"""Standard deviation of what a step changes."""

FOREVER = 1e9
"""Seconds of waits that a simulated script does not want to end in vain."""

DIGEST_SECONDS = 0.2
"""Digests come more often, or a history would end before one."""


def is_observer(credentials: Credentials) -> bool:
    """Return whether what somebody dials with is the key of an observer."""
    return credentials.key is not None and credentials.key.role is Role.OBSERVER


class WatchedMembership(Membership):
    """A membership that tells its simulated worker what the network half notes."""

    def __init__(self, worker: "SimulatedWorker", elements: int) -> None:
        super().__init__(elements, inbox_bytes_max=worker.inbox_bytes_max)
        self._watcher = worker

    def on_welcome(self, welcome: Welcome) -> None:
        self._watcher.on_welcome(welcome)
        super().on_welcome(welcome)

    def on_snapshot_progress(self, elements: int) -> None:
        assert 0 < elements <= self._watcher.run.replica_elements
        super().on_snapshot_progress(elements)

    def on_lost(self, reason: str) -> None:
        self._watcher.on_lost(reason)
        super().on_lost(reason)

    def on_replica_wanted(self, accepted: int) -> None:
        super().on_replica_wanted(accepted)
        self._watcher.on_replica_wanted()

    def on_resync(self, position: int) -> None:
        super().on_resync(position)
        self._watcher.on_resync(position)

    def on_resumed(self, rebase: Rebase | None) -> None:
        super().on_resumed(rebase)
        self._watcher.on_resumed(rebase)

    def on_blocks(self, blocks: Blocks, *, missed: bool) -> None:
        super().on_blocks(blocks, missed=missed)
        if missed:  # nobody makes steps that count meanwhile
            self._watcher.run.network.after(0, self._watcher.pull)

    def on_entries(self, total: Sum) -> None:
        super().on_entries(total)
        self._watcher.sums += total.origin is None

    def on_stable(self, versions: Mapping[int, int]) -> None:
        assert covers(versions, self.stable), "what was stable is so for ever"
        super().on_stable(versions)

    def on_finished(self, versions: Mapping[int, int]) -> None:
        super().on_finished(versions)
        self._watcher.on_finished(versions)

    def on_closed(self, error: GradwireError | None) -> None:
        super().on_closed(error)
        self._watcher.on_closed(error)


class SimulatedParameters(NumpyParameters):
    """The parameters of a worker, with gradients that the history gives it."""

    def __init__(self, layout: Layout, values: np.ndarray[Any, np.dtype[Any]]) -> None:
        super().__init__(values)
        self.layout = layout
        self.gradient: np.ndarray[Any, np.dtype[np.float32]] | None = None

    def take_gradient(self) -> np.ndarray[Any, np.dtype[np.float32]] | None:
        gradient, self.gradient = self.gradient, None
        return gradient


class SimulatedState(Averaged):
    """The state of an optimizer that a worker does not have: it changes as the parameters do.

    What each makes of it with `write` is the same, as that of all other workers is.
    """

    def __init__(
        self,
        worker: "SimulatedWorker",
        kept: KeptState,
        model: Layout,
        elements: np.ndarray[Any, np.dtype[np.float32]],
        quantum: float,
    ) -> None:
        self.kept = kept
        self._worker = worker
        self._elements = elements
        self._slots = len(kept.slots) * model.elements
        self._quantum = quantum
        self._state = np.zeros_like(elements)
        self._has_begun = False

    def read(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            return  # a run begins with an optimizer that has made no step
        random, slots = self._worker.random, self._slots
        self._state[:slots] += random.normal(0, CHANGE, slots).astype(np.float32)
        self._state[slots:] += np.float32(random.integers(1, 4) * self._quantum)
        self._elements[:] = self._state

    def write(self) -> None:
        self._state[:] = self._elements


class SimulatedWorker:
    """A worker without threads: its script, in a few lines.

    Parameters
    ----------
    run : SimulatedRun
    name : str
    feedback : "local" or "shared"
    credentials : Credentials, optional
        What it dials with.
    """

    inbox_bytes_max = 2_000

    def __init__(
        self, run: "SimulatedRun", name: str, feedback: str, credentials: Credentials | None = None
    ) -> None:
        self.name = name
        self.run = run
        self.change = CHANGE
        """Standard deviation of what its steps change."""
        self.trains = slice(None)
        """The parameters that its steps change."""
        shares = run.mode is None or not run.mode.has_rounds
        self.scale = 0.5 if shares and feedback == "local" and sum(name.encode()) % 2 else 1.0
        """What its changes are multiplied by, for half of the workers with local feedback."""
        self.done = self.leaving = False
        self.module = run.new_buffers(name)
        """With the buffers that are averaged, if this one has any."""
        self.sums = 0
        self.may_multiply_damage = False
        """Whether its replica was damaged, while changes of its parameters are multiplied: so the
        damage is, and the parameters keep that as if they were trained."""
        self.came_in, self.forgotten = np.zeros((2, run.elements))
        """What the training steps have changed, and what of that the residual's decay has taken."""
        self.random = np.random.default_rng(run.network.random.randrange(2**32))
        request = Join(
            run=None,
            worker_id=run.network.random.randbytes(WORKER_ID_BYTES),
            name=name,
            rank=None,
            codec=CODEC_VERSION,
            quantum_exponent=-24,
            layout=run.layout,
            mode=None if credentials is not None and is_observer(credentials) else run.mode,
        )
        self.initial = self.random.normal(0, 0.1, run.elements).astype(np.float32)
        self.membership = WatchedMembership(self, run.elements)
        self.membership.post = self._post
        self.membership.notify = self._look_later
        self.parameters = SimulatedParameters(run.layout, self.initial.copy())
        entry = Entry(
            settings=self.settings(feedback),
            parameters=self.parameters,
            request=request,
            membership=self.membership,
            master=run.dialled,
            random=run.network.random.random,
            clock=lambda: self.now,
            averages=partial(SimulatedState, self),
            buffers=self.module,
            observes=credentials is not None and is_observer(credentials),
        )
        self.worker = entry.worker
        self.endpoint = Endpoint(
            run.config, random_bytes=run.network.random.randbytes, credentials=credentials
        )
        self._participant: Participant | None = None
        self._plays = False
        """Whether its training thread runs just now."""
        self._looks = False
        """Whether it will look whether its wait is over."""
        self._procedure: Procedure[Any] | None = None
        """What its training thread does, where that waits."""
        self._wait: Wait | None = None
        self._then: Callable[[Any], None] = lambda _: None
        dial(self.worker, self.endpoint, run.dialled, run.network.now)
        self.host: Host = run.network.add(name, self.endpoint, self.worker)
        self._play(entry.enter(), self._begin)

    def settings(self, feedback: str) -> Settings:
        """Return the settings of its session."""
        return Settings(
            master=self.run.dialled,
            feedback=feedback,  # type: ignore[arg-type]
            scale="auto" if self.scale == 1.0 else self.scale,
            threshold=2 * CHANGE,
            shake_up_steps=0,
            finish_residual="send",
            staleness_bound="off",
            join_timeout_seconds=FOREVER,
            buffer_steps=self.run.buffer_steps or 0,
        )

    # What the network thread does.

    def on_welcome(self, welcome: Welcome) -> None:
        if welcome.founder:
            first = np.zeros(self.run.replica_elements, np.float32)
            first[: self.run.elements] = self.initial
            self.run.initial = Replica.from_parameters(first, welcome.quantum_exponent).values

    def on_lost(self, reason: str) -> None: ...

    def on_replica_wanted(self) -> None:
        self.run.network.after(0, self.pull)

    def on_resync(self, position: int) -> None: ...

    def on_resumed(self, rebase: Rebase | None) -> None: ...

    def on_finished(self, versions: Mapping[int, int]) -> None: ...

    def on_closed(self, error: GradwireError | None) -> None: ...

    def _post(self, function: Callable[..., None], *arguments: object) -> None:
        """Have the network thread do something: at once, as the training thread is never in it."""
        if self._plays:
            self._call(function, *arguments)
        else:
            self.run.network.after(0, lambda: self._call(function, *arguments))

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        if self.host.alive:
            function(*arguments, now=self.now)
            self.run.network.turn(self.host)

    # What its training thread does.

    def _play(
        self, procedure: Procedure[Any], then: Callable[[Any], None] = lambda _: None
    ) -> None:
        """Do something as far as it goes; it goes on when what it waits for is there."""
        assert self._procedure is None, f"{self.name} does something else"
        self._procedure, self._then = procedure, then
        self.go_on()

    def go_on(self) -> None:
        """Resume what waits; it may find that it has to wait on."""
        procedure = self._procedure
        if procedure is None or not self.host.alive:
            return
        network = self.run.network
        if network.now < self.host.asleep_until:
            network.at(self.host.asleep_until, self.go_on)
            return
        self._plays, self._wait = True, None
        try:
            self._wait = next(procedure)
        except StopIteration as end:
            self._procedure = self._wait = None
            self._plays = False
            self._then(end.value)
        except GradwireError:
            self._procedure = self._wait = None
            if not self.membership.closed:
                raise
        else:
            assert self._wait.deadline > self.now, f"deadline: {self.name} waits beyond it"
            if self._wait.deadline < self.now + FOREVER / 2:
                network.at(max(self._wait.deadline - self.host.ahead, network.now), self._look)
        finally:
            self._plays = False
        network.turn(self.host)

    def _look_later(self) -> None:
        if self._wait is not None and not self._looks:
            self._looks = True
            self.run.network.after(0, self._look)

    def _look(self) -> None:
        """Go on if a wait is over."""
        self._looks = False
        wait = self._wait
        if wait is not None and (
            wait.condition() or self.membership.closed or self.now >= wait.deadline
        ):
            self.go_on()

    def _begin(self, participant: Participant) -> None:
        self._participant = participant
        participant.shared.repair.seconds = DIGEST_SECONDS
        self.snapshot_values = self.replica.values.copy()
        self.accounts = WorkerAccounts(self, participant)
        self.feedback.decay = self._decay
        self.on_live()

    def _decay(self, factor: float) -> None:
        before = self.feedback.residual().astype(np.float64)
        type(self.feedback).decay(self.feedback, factor)
        self.forgotten += (before - self.feedback.residual())[: self.run.elements]

    def on_live(self) -> None: ...

    def on_rebased(self, versions: Mapping[int, int]) -> None: ...

    # The script.

    def step(self) -> None:
        """Train, push, pull."""
        if self.is_gone or self._procedure is not None:
            return
        if self.module is not None:
            self.module.train()
        change = self.random.normal(0, self.change, self.run.elements).astype(np.float32)
        if self.run.has_optimizer:
            self.parameters.gradient = change
            self.came_in += change
        else:
            parameters = self.parameters.vector
            before = parameters.astype(np.float64)
            parameters[self.trains] += change[self.trains]
            self.came_in += self.scale * (parameters - before)
        self._play(self.participant.step())

    def pull(self) -> None:
        """Apply what has come."""
        if self._participant is not None and self._procedure is None and not self.membership.closed:
            self._play(self._participant.pull())

    def finish(self) -> None:
        """Send the rest, and wait for all others; not before a step that waits is over."""
        if self._procedure is not None:
            self._then = lambda _: self.finish()
        elif not self.is_gone:
            self._play(self.participant.finish(FOREVER), self._on_complete)

    def try_to_complete(self) -> bool:
        """Apply what there is; leave when that is all there is, and return whether it is."""
        if not self.done and not self.membership.closed:
            if self.is_waiting:
                self.go_on()
            elif self.participant.observes:
                self.finish()
            else:
                self.pull()
        if self.done and not self.is_gone:
            self.leave()
        return self.done

    def _on_complete(self, _: None) -> None:
        self.done = True

    def leave(self) -> None:
        self.leaving = True
        self._call(self.worker.leave, "finished")

    # What there is to see.

    @property
    def now(self) -> float:
        """The time on its clock."""
        return self.run.network.now + self.host.ahead

    @property
    def participant(self) -> Participant:
        assert self._participant is not None, f"{self.name} is not in yet"
        return self._participant

    @property
    def live(self) -> bool:
        """Whether it takes part."""
        return self._participant is not None

    @property
    def is_waiting(self) -> bool:
        """Whether its script waits for something."""
        return self._procedure is not None

    @property
    def is_gone(self) -> bool:
        """Whether it is dead, or leaving, or has left."""
        return self.closed or self.leaving or not self.host.alive

    @property
    def rank(self) -> int:
        assert self.membership.welcome is not None
        return self.membership.welcome.rank

    @property
    def others(self) -> set[int]:
        """The ranks of the others that train, as far as it knows."""
        return {peer.rank for peer in self.peers if not peer.finished} - {self.rank}

    @property
    def feedback(self) -> Any:
        return self.participant.shared.feedback

    @property
    def replica(self) -> Replica:
        return self.participant.shared.feedback.replica

    @property
    def versions(self) -> dict[int, int]:
        return self.participant.shared.versions if self.live else {}

    @property
    def sent(self) -> int:
        return self.participant.tally.updates_sent

    @property
    def applied(self) -> int:
        return self.participant.tally.updates_applied

    @property
    def clock(self) -> int:
        """Its steps, where it tells them with its updates; 0 where it does not."""
        return 0 if self._participant is None else self._participant.outbox.clock

    @property
    def sends_from(self) -> Feedback:
        """The feedback with what it has not sent."""
        contributing = self.participant.contributing
        return self.feedback if contributing is None else contributing._feedback

    @property
    def ends_with_a_residual(self) -> bool:
        """Whether its contributions are sparse: what is below the threshold is never sent."""
        contributing = self.participant.contributing
        return contributing is not None and contributing.mode.magnitude_max is None

    @property
    def residual_at_the_end(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """What it had not sent when its parameters became the shared ones; now, before that.

        Of parameters: at the end, nothing is sent of state behind them.
        """
        settled = self.accounts.residual_when_settled
        if settled is not None:
            return settled[: self.run.elements]
        self.participant.shared.parameters.gather()
        residual: np.ndarray[Any, np.dtype[np.float64]] = self.sends_from.residual().astype("f8")
        contributing = self.participant.contributing
        if contributing is not None and contributing._ahead.is_anywhere:
            for number, added in contributing._ahead._added.items():
                residual[contributing._ahead._spans[number]] -= added  # it was not trained
        return residual[: self.run.elements]

    @property
    def delivered(self) -> int:
        return self.membership.updates_delivered

    @property
    def welcome(self) -> Welcome | None:
        return self.membership.welcome

    @property
    def peers(self) -> Sequence[Peer]:
        return self.membership.peers

    @property
    def lost(self) -> str | None:
        return self.membership.lost

    @property
    def closed(self) -> bool:
        return self.membership.closed

    @property
    def error(self) -> GradwireError | None:
        return self.membership.error

    @property
    def stable(self) -> Mapping[int, int]:
        return self.membership.stable

    @property
    def finished(self) -> Mapping[int, int] | None:
        return self.membership.finished

    @property
    def stopping(self) -> str | None:
        return self.membership.stopping

    @property
    def buffers(self) -> Mapping[int, Buffers]:
        return self.membership.buffers

    @property
    def reconnections(self) -> int:
        return self.membership.reconnections

    @property
    def rebases(self) -> int:
        return self.membership.rebases
