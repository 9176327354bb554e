"""`ShardedParticipant`: one worker with several masters, each with a part of the parameters.

K masters are K runs of disjoint ranges of one vector. In each of them the worker is a `Participant`
of its own, with its own connection, versions, thresholds and digest; integers are added, so nothing
has to be agreed upon between them. A master that is away is missed for its part alone. Here they
become one worker: a step is made in all of them, features of the model are asked once, and whatever
a script sees is of the whole model.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from gradwire.errors import GradwireError, UsageError
from gradwire.participant.feature import Feature
from gradwire.participant.items import Item, Items
from gradwire.participant.participant import Participant
from gradwire.participant.sharded_stats import stats_of_all
from gradwire.participant.together import together
from gradwire.replica.checkpoint_state import SHARDS, STATE_VERSION, states_of_parts
from gradwire.replica.pull import PeerUpdate
from gradwire.replica.shared_parameters import flat_change
from gradwire.replica.stats import SessionStats, Tally, Traffic
from gradwire.replica.waits import Procedure
from gradwire.settings.settings import Settings
from gradwire.target.part import Part
from gradwire.worker.worker import Worker
from gradwire_codecs.arrays import Float32Array
from gradwire_codecs.replica.digests import MODULUS
from gradwire_protocol.messages.admission import Peer, Welcome
from gradwire_protocol.messages.work import Plan

Result = TypeVar("Result")


class ShardedParticipant:
    """A worker that takes part in the runs of several masters; it is used as a `Participant` is.

    Parameters
    ----------
    shards : sequence of Participant
        In the order of the parts. Their features are those for which each part counts alone.
    parts : sequence of Part
        Of the target.
    """

    features: Sequence[Feature] = ()
    """Those of all of the target."""

    def __init__(self, shards: Sequence[Participant], parts: Sequence[Part]) -> None:
        self.shards = shards
        self._first = shards[0]
        self._parts = parts
        self._trained = False
        """Whether there is anything to push in this step."""
        self._has_pushed = False
        """Whether the step of a push was not ended by a pull yet."""
        for shard in shards:
            shard.features = [_AskedOnce(lambda: self._trained), *shard.features]

    # What a session shows of it.

    @property
    def settings(self) -> Settings:
        """The settings of the session."""
        return self._first.settings

    @property
    def clock(self) -> Callable[[], float]:
        """Return seconds since any fixed moment."""
        return self._first.clock

    @property
    def observes(self) -> bool:
        """Whether it only receives."""
        return self._first.observes

    @property
    def welcome(self) -> Welcome:
        """What the first master said when it let this worker in."""
        return self._first.welcome

    @property
    def worker(self) -> Worker:
        """What speaks with the first master."""
        return self._first.worker

    @property
    def tally(self) -> Tally:
        """What is counted of the first part: its steps are those of all."""
        return self._first.tally

    @property
    def quantum(self) -> float:
        """The value of one unit of the shared parameters, the largest of all parts."""
        return max(shard.quantum for shard in self.shards)

    @property
    def peers(self) -> Sequence[Peer]:
        """The workers that take part, by the word of the first master."""
        return self._first.peers

    @property
    def has_finished(self) -> bool:
        """Whether all workers have finished, at all masters."""
        return all(shard.has_finished for shard in self.shards)

    @property
    def stop_reason(self) -> str | None:
        """Why all workers are to end their training; None while they are not."""
        return next((each.stop_reason for each in self.shards if each.stop_reason), None)

    @property
    def is_closed(self) -> bool:
        """Whether one of the memberships is over, so that no step can be made any more."""
        return any(shard.is_closed for shard in self.shards)

    @property
    def is_paused(self) -> bool:
        """Whether no update is applied to the parameters."""
        return self._first.is_paused

    @is_paused.setter
    def is_paused(self, paused: bool) -> None:
        for shard in self.shards:
            shard.is_paused = paused

    def world_size(self) -> int:
        """Return a number above each rank that the run has had, as far as this worker knows."""
        return max(shard.world_size() for shard in self.shards)

    def wait_for_workers(self, n: int, timeout_seconds: float) -> Procedure[None]:
        """Wait until at least `n` workers take part, in the part of every master.

        Raises `DeadlineError` if fewer take part after `timeout_seconds`.
        """
        yield from self._in_all(lambda shard: shard.wait_for_workers(n, timeout_seconds))

    def check_connected(self) -> None:
        """Raise the error that ended a membership, if one did."""
        for shard in self.shards:
            shard.check_connected()

    def while_connected(self, procedure: Procedure[Result]) -> Procedure[Result]:
        """Run a procedure that waits for one master; raise if the membership of any is over."""
        try:
            while True:
                try:
                    wait = next(procedure)
                except StopIteration as end:
                    result: Result = end.value
                    return result
                is_over = wait.condition
                yield wait._replace(condition=lambda: self.is_closed or is_over())  # noqa: B023
                self.check_connected()
        finally:
            procedure.close()

    def log(self, step: int | None, values: Mapping[str, float]) -> None:
        """Have the first master keep scalars."""
        self._first.log(step, values)

    # Training.

    def step(self) -> Procedure[None]:
        """Push what this step changed, and apply what peers sent; an observer only applies."""
        if self.observes:
            yield from self.pull()
            return
        yield from self._ask_features()
        self._check_trained()
        yield from self._in_all(lambda shard: shard.step())
        yield from self._end_step()

    def push(self, change: Any = None) -> Procedure[int]:
        """Post what has reached the threshold; return how many elements that changes."""
        for feature in self.features if change is not None else ():
            feature.note_change(change)
        yield from self._ask_features()
        changes = [None] * len(self.shards) if change is None else self._changes(change)
        if change is None:
            self._check_trained()
        elements = yield from together(
            [
                (shard.membership, shard.push(each))
                for shard, each in zip(self.shards, changes, strict=True)
            ]
        )
        self._has_pushed = True
        return sum(elements)

    def pull(self) -> Procedure[list[PeerUpdate]]:
        """Apply what peers have sent; return the updates that were not conflated."""
        applied = yield from self._in_all(lambda shard: shard.pull())
        if self._has_pushed or self.observes:
            yield from self._end_step()
        return [update for each in applied for update in each]

    def items(self, plan: Plan) -> "ItemsOfFirst":
        """Return the items of a work, which the first master grants one by one."""

        def pull() -> None:
            for shard in self.shards if not self.is_paused else ():
                shard.applying.pull()

        return ItemsOfFirst(self, self._first.items(plan, pull))

    def lend(self, *, applies: bool) -> None:
        """Let a master that has lost its replica have it while no step is made."""
        for shard in self.shards:
            shard.lend(applies=applies)

    def take_back(self) -> None:
        """Stop lending the replica."""
        for shard in self.shards:
            shard.take_back()

    def take_residual_out(self) -> Sequence[Float32Array]:
        """Set the parameters to the shared ones; return the residual for `put_residual_back`."""
        return [residual for shard in self.shards for residual in shard.take_residual_out()]

    def put_residual_back(self, residual: Sequence[Float32Array]) -> None:
        """Add a residual that was taken out to what was trained since then."""
        for shard, each in zip(self.shards, residual, strict=True):
            shard.put_residual_back([each])

    # The end.

    def stop_training(self, reason: str) -> None:
        """Have all workers end their training."""
        self._first.stop_training(reason)

    def finish(self, timeout_seconds: float) -> Procedure[None]:
        """Send what is left, and wait until all workers have finished and hold the same bits.

        Raises `DeadlineError` if other workers have not finished in time; it can be called again.
        """
        self._before_finish()
        yield from self._in_all(lambda shard: shard.finish(timeout_seconds))
        for feature in self.features:
            feature.after_finish()

    def send_rest(
        self, timeout_seconds: float, *, training_is_over: bool = False
    ) -> Procedure[None]:
        """Send all that is left, residual and buffers, and end with the shared parameters."""
        if self.tally.steps:  # what is untrained misleads
            self._before_finish()
        rest = partial(Participant.send_rest, training_is_over=training_is_over)
        yield from self._in_all(lambda shard: rest(shard, timeout_seconds))

    def leave(self, reason: str) -> None:
        """Leave all runs; what was pushed arrives."""
        for shard in self.shards:
            shard.leave(reason)

    def until_gone(self, deadline: float) -> Procedure[bool]:
        """Wait until all masters have confirmed that we left; return whether they have."""
        return all((yield from self._in_all(lambda shard: shard.until_gone(deadline))))

    def close(self) -> None:
        """Release what it holds in this process. Can be repeated."""
        for shard in self.shards:
            shard.close()
        features, self.features = self.features, ()
        for feature in features:
            feature.on_leave()

    # Statistics and checkpoints.

    def stats(self, traffic: Traffic) -> SessionStats:
        """Return the statistics of the session so far: of all parts together."""
        sizes = [part.layout.elements for part in self._parts]
        return stats_of_all([shard.stats(traffic) for shard in self.shards], sizes)

    def digest(self) -> int:
        """Return 64 bits that are the same for all workers with the same updates applied."""
        return digest_of_parts([shard.digest() for shard in self.shards])

    def save(self) -> dict[str, Any]:
        """Return what a checkpoint needs besides the parameters: the state of each part."""
        return {"version": STATE_VERSION, SHARDS: [shard.save() for shard in self.shards]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `save` returned, or raise `UsageError` and change nothing."""
        self.check_connected()
        states = states_of_parts(state, [part.layout.elements for part in self._parts])
        before = [shard.save() for shard in self.shards]
        try:
            for shard, each in zip(self.shards, states, strict=True):
                shard.restore(each)
        except UsageError:
            for shard, each in zip(self.shards, before, strict=True):
                shard.restore(each)
            raise

    # Private.

    def _in_all(self, begin: Callable[[Participant], Procedure[Result]]) -> Procedure[list[Result]]:
        """Run a procedure of each part, all at once."""
        return together([(shard.membership, begin(shard)) for shard in self.shards])

    def _ask_features(self) -> Procedure[None]:
        """Note whether anything was trained, if nothing stands against a push of any part."""
        yield from self._in_all(lambda shard: shard.before_push())
        for feature in self.features:
            feature.before_push()
        self._trained = all(feature.has_trained() for feature in self.features)

    def _check_trained(self) -> None:
        """Raise what is wrong with any part of what was trained, before the first part is sent."""
        if self._trained:
            errors = [error for shard in self.shards if (error := _wrong_in(shard)) is not None]
            if errors:
                raise errors[0]

    def _end_step(self) -> Procedure[None]:
        """Call the hooks at the end of a step, unless the session is paused."""
        if self.is_paused:
            return
        self._has_pushed = False
        for feature in self.features:
            feature.after_step()
            yield from self.while_connected(feature.wait())

    def _before_finish(self) -> None:
        if not self._first.is_finishing and not self.observes:
            for feature in self.features:
                feature.before_finish()

    def _changes(self, change: Any) -> list[Float32Array]:
        """Return a change in the parts that it has, or raise what is wrong with it."""
        flat = flat_change(
            self._parts[0], change, sum(each.layout.elements for each in self._parts)
        )
        changes = [flat[part.span] for part in self._parts]
        for shard, each in zip(self.shards, changes, strict=True):
            shard.shared.checked_change(each)
        return changes


def digest_of_parts(digests: Sequence[int]) -> int:
    """Return the digest of a model by those of its parts, in order; of one part it is its own."""
    return sum((2 * number + 1) * digest for number, digest in enumerate(digests)) % MODULUS


def _wrong_in(shard: Participant) -> GradwireError | None:
    """Return the error that stands against a push of a part; each part has to be asked."""
    try:
        shard.check_trained()
    except GradwireError as error:
        return error
    return None


class _AskedOnce(Feature):
    """Stands for the features of all of the target in one part of it."""

    def __init__(self, trained: Callable[[], bool]) -> None:
        self._has_trained = trained

    def has_trained(self) -> bool:
        """Return whether anything was trained in this step."""
        return self._has_trained()


class ItemsOfFirst:
    """`Items` of the first master, in a loop that the end of any master ends."""

    def __init__(self, participant: ShardedParticipant, items: Items) -> None:
        self._participant = participant
        self._items = items

    def next(self) -> Procedure[Item | None]:
        """Say that the last item is finished, and wait for another one."""
        return self._participant.while_connected(self._items.next())

    def end(self) -> None:
        """End the loop."""
        self._items.end()
