"""`ShardedRun`: a simulated run of several masters, each with a part of the parameters.

Each part is a `SimulatedRun`, or one with a standby or relays, with a ledger and checks of its own.
What is new here is what the parts have to agree upon: a worker has one rank everywhere, and one
worker begins all parts.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from random import Random
from typing import Any, Final

import numpy as np

from gradwire.errors import GradwireError
from gradwire.participant.sharded import ShardedParticipant
from gradwire.session.entry import Entry
from gradwire.session.sharded_entry import enter_all
from gradwire.target.part import Part, cut, layout_of_part, parts_of
from gradwire_codecs import Replica
from gradwire_protocol import Credentials, RunKey
from gradwire_protocol.messages.admission import Welcome
from gradwire_protocol.messages.layout import Layout, Tensor
from gradwire_protocol.messages.modes.mode import Mode
from gradwire_server.config import MasterConfig
from gradwire_server.state.run import Run
from support.invariants import Invariants
from support.network import Host, Link, SimulatedNetwork
from support.relayed_run import RelayedRun
from support.simulated_thread import FOREVER, SimulatedThread
from support.simulated_worker import CHANGE, QUANTUM_EXPONENT, SimulatedParameters, SimulatedWorker
from support.training import SimulatedRun
from support.two_masters import PairedRun

TENSORS: Final = 3
"""Of the model: parts end somewhere within them."""

IDLE_SECONDS: Final = 3.0


class PlainPart(SimulatedRun):
    """A master that is missed soon."""

    def __init__(self, seed: int, link: Link, **options: Any) -> None:
        config = MasterConfig(idle_timeout_seconds=IDLE_SECONDS, recovery_seconds=4.0)
        super().__init__(
            seed,
            link,
            idle_timeout_seconds=IDLE_SECONDS,
            connect_timeout_seconds=2.0,
            master=config,
            **options,
        )


class SimulatedShard(SimulatedWorker):
    """What a `ShardedWorker` has at one of its masters.

    Parameters
    ----------
    run : SimulatedRun
        Of the master.
    whole : ShardedWorker
    part : Part
        Of what that trains.
    rank : int, optional
        The one to ask for.
    """

    def __init__(
        self,
        run: SimulatedRun,
        whole: "ShardedWorker",
        number: int,
        part: Part,
        rank: int | None,
        credentials: Credentials | None,
    ) -> None:
        self.whole = whole
        self.part = part
        self.shard, self.shards = number, len(whole.runs)
        self.rank_to_ask_for = rank
        super().__init__(run, f"{whole.name}.{number}", whole.feedback, credentials)

    def new_thread(self) -> SimulatedThread:
        return self.whole.thread

    def new_parameters(self) -> Part:
        return self.part

    def enter(self) -> None:
        """Leave it to the whole."""

    def on_welcome(self, welcome: Welcome) -> None:
        """Do nothing: what a run begins with is known when its master has it."""

    def on_closed(self, error: GradwireError | None) -> None:
        if error is not None:
            self.run.network.after(0, lambda: self.whole.on_failed(error))

    def give_up(self) -> None:
        """Leave at once."""
        self.leaving = True
        self._call(self.worker.abort, "it has failed elsewhere")

    def pull(self) -> None:
        """Apply what has come, in all parts."""
        self.whole.pull()

    def step(self) -> None:
        raise NotImplementedError("a step is made in all parts")

    def finish(self) -> None:
        raise NotImplementedError("all parts finish together")


class ShardedWorker:
    """A worker with several masters: production code but for threads, as `SimulatedWorker` is.

    Parameters
    ----------
    runs : sequence of SimulatedRun
        Of the masters.
    name : str
    feedback : "local" or "shared"
    random : Random
    """

    def __init__(
        self, runs: Sequence[SimulatedRun], name: str, feedback: str, random: Random, layout: Layout
    ) -> None:
        self.runs = runs
        self.name = name
        self.feedback = feedback
        self.network = runs[0].network
        self.random = np.random.default_rng(random.randrange(2**32))
        self.thread = SimulatedThread(self.network, name)
        self.thread.on_failed = self.on_failed
        self.shards: list[SimulatedShard] = []
        self.error: GradwireError | None = None
        self.done = False
        self._participant: ShardedParticipant | None = None
        self.initial = self.random.normal(0, 0.1, layout.elements).astype(np.float32)
        self.parameters = SimulatedParameters(
            self.initial.copy(), layout, lambda: self.shards[0].rank
        )
        parts = parts_of(self.parameters, weights_of(len(runs)))
        self.thread.play(enter_all(parts, self._dial, rank=None, observes=False), self._begin)

    def _dial(self, number: int, part: Part, rank: int | None) -> Entry:
        run = self.runs[number]
        shard = SimulatedShard(run, self, number, part, rank, run.credentials(self.name))
        self.shards.append(shard)
        run.workers.append(shard)
        return shard.entry

    def _begin(self, participant: ShardedParticipant) -> None:
        self._participant = participant
        for shard, part in zip(self.shards, participant.shards, strict=True):
            shard.begin(part)

    # The script.

    def step(self) -> None:
        """Train, push, pull."""
        if self.is_gone or self.is_waiting:
            return
        values = self.parameters.vector
        before = values.astype(np.float64)
        values += self.random.normal(0, CHANGE, values.size).astype(np.float32)
        for shard in self.shards:
            span = shard.part.span
            shard.came_in += values[span] - before[span]
        self.thread.play(self.participant.step())

    def pull(self) -> None:
        """Apply what has come."""
        if self.live and not self.is_waiting and not self.thread.is_closed:
            self.thread.play(self.participant.pull())

    def finish(self) -> None:
        """Send the rest, and wait for all others; not before a step that waits is over."""
        if self.is_waiting:
            self.thread.then = lambda _: self.finish()
        elif not self.is_gone:
            self.thread.play(self.participant.finish(FOREVER), self._on_complete)

    def try_to_complete(self) -> bool:
        """Apply what there is; leave when that is all there is, and return whether it is."""
        if not self.done and not self.thread.is_closed:
            if self.is_waiting:
                self.thread.go_on()
            else:
                self.pull()
        if self.done and not self.is_gone:
            for shard in self.shards:
                shard.leave()
        return self.done

    def on_failed(self, error: GradwireError) -> None:
        """End as a script does that an error ends: it leaves all masters."""
        if not self.thread.is_closed and self.live:
            raise error
        if self.error is None and not self.done:
            self.error = error
            for shard in self.shards:
                if not shard.is_gone:
                    shard.give_up()

    def kill(self) -> None:
        """Die without a word."""
        for shard in self.shards:
            if shard.host.alive:
                self.network.kill(shard.host)

    def _on_complete(self, _: None) -> None:
        self.done = True
        for shard in self.shards:
            shard.done = True

    # What there is to see.

    def begun(self) -> bytes:
        """Return what the replica of a run is at first that begins with its parameters."""
        return Replica.from_parameters(self.initial, QUANTUM_EXPONENT).values.tobytes()

    @property
    def participant(self) -> ShardedParticipant:
        """What takes part."""
        assert self._participant is not None, f"{self.name} is not in yet"
        return self._participant

    @property
    def live(self) -> bool:
        """Whether it takes part."""
        return self._participant is not None

    @property
    def is_waiting(self) -> bool:
        """Whether its script waits for something."""
        return self.thread.procedure is not None

    @property
    def is_gone(self) -> bool:
        """Whether it is dead, or leaving, or has left: from one master is from all."""
        return any(shard.is_gone for shard in self.shards)


def weights_of(masters: int) -> list[int]:
    """Return the weights of so many masters: the first one has the largest part."""
    return [masters + 1 - number for number in range(masters)]


class ShardedRun:
    """Several masters and their workers, on one network.

    Parameters
    ----------
    seed : int
    link : Link
    kinds : sequence of type
        Of the part of each master: `SimulatedRun`, `PairedRun` or `RelayedRun`.
    elements : int
        Of the model.
    run_key : RunKey, optional
        Of all masters.
    watches_transport : bool
        As in `SimulatedRun`.
    options
        Of each part.
    """

    def __init__(
        self,
        seed: int,
        link: Link,
        kinds: Sequence[type[SimulatedRun]],
        *,
        elements: int = 400,
        run_key: RunKey | None = None,
        watches_transport: bool = False,
        mode: Mode | None = None,
        **options: Any,
    ) -> None:
        self.network = SimulatedNetwork(seed, link)
        if watches_transport:
            self.invariants = Invariants(self.network)
        each = elements // TENSORS
        sizes = [each] * (TENSORS - 1) + [elements - (TENSORS - 1) * each]
        self.layout = Layout(tuple(Tensor(f"t{n}", (size,)) for n, size in enumerate(sizes)))
        self.workers: list[ShardedWorker] = []
        self.runs: list[SimulatedRun] = []
        self._names = count()
        for number, (kind, span) in enumerate(
            zip(kinds, cut(elements, weights_of(len(kinds))), strict=True)
        ):
            run = kind(
                seed,
                link,
                elements=span.stop - span.start,
                run_key=run_key,
                watches_transport=False,
                network=self.network,
                where=f"-{number}",
                layout=layout_of_part(self.layout, span),
                **options,
            )
            run.mode = mode
            run.takes_back = True
            self.runs.append(run)
        self._founded: list[Run] = []
        """Runs whose beginning was noted."""
        after_turn = self.network.after_turn

        def watched(host: Host) -> None:
            after_turn(host)
            self._note_beginnings()

        self.network.after_turn = watched

    def _knows(self, run: Run) -> bool:
        return any(each is run for each in self._founded)

    def _note_beginnings(self) -> None:
        """Note what a run begins with at its master."""
        for part in self.runs:
            for master in part.all_masters():
                run = master.run
                if run is not None and run.founded and not self._knows(run):
                    self._founded.append(run)
                    if not run.recovered and not run.relay.versions:
                        part.initial = run.replica.values.copy()

    @property
    def random(self) -> Random:
        """The network's source of randomness."""
        return self.network.random

    def join_some(self, n: int) -> list[ShardedWorker]:
        """Let so many other workers join, and return them."""
        random = self.random
        joining = [
            ShardedWorker(
                self.runs,
                f"worker{next(self._names)}",
                random.choice(["local", "shared"]),
                random,
                self.layout,
            )
            for _ in range(n)
        ]
        self.workers += joining
        return joining

    def join_and_wait(self, n: int, *, seconds: float = 120) -> list[ShardedWorker]:
        """Let workers join, and wait until all are live; return these."""
        joining = self.join_some(n)
        self.network.run(lambda: all(w.live or w.is_gone for w in joining), seconds=seconds)
        return joining

    @contextmanager
    def watching_rounds(self) -> Iterator[None]:
        """Keep accounts of the rounds of each master, and of sums of relays, inside the block."""
        with ExitStack() as stack:
            for run in self.runs:
                accounts, ledger = run.round_accounts, partial(getattr, run, "ledger")
                stack.enter_context(accounts.watching(ledger, run.has))
            yield

    def begin(self, workers: int) -> None:
        """Let workers join, when all masters are ready; a standby then has what they have."""
        self.wait_for_masters()
        self.join_and_wait(workers)
        for run in self.runs:
            if isinstance(run, PairedRun):
                run.wait_for_standby()

    def wait_for_masters(self) -> None:
        """Wait until all masters are in charge, and relays stand before theirs."""
        for run in self.runs:
            self.network.run(lambda run=run: run.in_charge is not None, seconds=60)  # type: ignore[misc]
            if isinstance(run, RelayedRun):
                run.wait_for_relays()

    @property
    def taking_part(self) -> list[ShardedWorker]:
        """The workers that are live, and neither dead nor done."""
        return [worker for worker in self.workers if worker.live and not worker.is_gone]

    def train(self, steps: int, *, interval: float = 0.05) -> None:
        """Let every live worker make so many steps, each at its own pace."""
        left = dict.fromkeys(self.taking_part, steps)

        def step(worker: ShardedWorker) -> None:
            worker.step()
            left[worker] -= 1
            if worker.is_gone or not left[worker]:
                del left[worker]
            else:
                self.network.after(interval * self.random.uniform(0.2, 2.0), lambda: step(worker))

        for worker in list(left):
            self.network.after(interval * self.random.random(), lambda w=worker: step(w))  # type: ignore[misc]
        self.network.run(lambda: not left, seconds=600)

    def wait_until_all_are_back(self, *, seconds: float = 200) -> None:
        """Wait until all workers that are alive take part at all masters."""
        for run in self.runs:
            run.wait_until_all_are_back(seconds=seconds)

    def finish(self) -> None:
        """Let all finish, and check what has to be true then, in each part and of all of them."""
        finishing = self.taking_part
        for worker in finishing:
            self.network.after(0.2 * self.random.random(), worker.finish)
        self.network.run(
            lambda: sum(w.try_to_complete() for w in finishing) == len(finishing), seconds=300
        )
        self.check_parts(finishing)
        self.network.run(
            lambda: all(shard.closed for w in finishing for shard in w.shards), seconds=60
        )
        assert [shard.error for w in finishing for shard in w.shards] == (
            [None] * len(finishing) * len(self.runs)
        )

    def check_parts(self, finishing: Sequence[ShardedWorker]) -> None:
        """Compare parameters, ranks and digests of workers that have finished."""
        for number, run in enumerate(self.runs):
            master = run.look_at_master_in_charge()
            run.check_the_end([worker.shards[number] for worker in finishing], master.run)
        for worker in finishing:
            assert worker.parameters.vector.tobytes() == finishing[0].parameters.vector.tobytes()
        assert len({worker.participant.digest() for worker in finishing}) == 1
        begun = np.concatenate([run.initial for run in self.runs])
        assert begun.tobytes() in [worker.begun() for worker in self.workers], (
            "one begins all parts"
        )

    def check_ranks(self) -> None:
        """Check that each worker has one rank, as where no master keeps that of a dead one."""
        for worker in self.workers:
            assert len({shard.rank for shard in worker.shards}) == 1, "one rank everywhere"
