"""`Contributing`: what a worker does in a mode with rounds, in the place of `Push`.

It trains by itself for some steps, contributes what they have changed, and waits for the mean.
Meanwhile its parameters are those that all workers have: what it has contributed it takes back, and
what the contribution did not carry waits in the residual. So all workers have the same bits after
each round.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, Final

import numpy as np

from gradwire.errors import DeadlineError
from gradwire.participant.ahead import Ahead
from gradwire.replica.training_half import TrainingHalf
from gradwire.replica.waits import Procedure, Wait
from gradwire_codecs import NOTHING, decode, encoded_hits
from gradwire_codecs.arrays import Float32Array, Int32Array
from gradwire_codecs.feedback.contributions import encode_dense, encode_largest, take_back
from gradwire_codecs.format.header import INT32_MAX
from gradwire_codecs.replica.fragments import fragments_of
from gradwire_codecs.replica.round_sum import ranges_of
from gradwire_codecs.replica.state_sum import STATE_MAGNITUDE_MAX, ranges_with_state
from gradwire_protocol.messages.modes.mode import model_of
from gradwire_protocol.messages.updates import UPDATE_BYTES_MAX

logger = logging.getLogger("gradwire.session")

EXACT: Final = 1
"""Quanta of a threshold that leaves nothing that a replica can express."""


class Contributing:
    """The contributions of one worker, in a run whose mode is one with rounds."""

    def __init__(self, half: TrainingHalf) -> None:
        self._half = half
        self._shared = half.shared
        self._feedback = half.sends_from
        """Over what is contributed: the parameters, unless it is gradients."""
        self._membership = half.membership
        self._tally = half.tally
        self._averaged = half.averaged
        self.mode = half.welcome.mode
        model = model_of(half.welcome.layout)
        self._elements = model.elements
        self._ranges = ranges_of([tensor.elements for tensor in model.tensors])
        self._state_ranges: list[tuple[int, int]] = []
        self._numbers_at = len(self._feedback.replica)
        if half.averaged is not None:
            slots = len(half.averaged.kept.slots)
            places = ranges_with_state(self._ranges, slots, [])
            self._state_ranges = places[len(self._ranges) :]
            self._numbers_at = places[-1][1]
        self._fragments = fragments_of(self._ranges, self.mode.streams)
        """By turn: the ranges of a contribution."""
        self._steps = 0
        """Steps since the last contribution."""
        self._rest_is_due = False
        self._keeps_residual = False
        """Whether the end leaves what did not reach the threshold unsent."""
        self._ahead = Ahead(self._feedback, self._fragments, self.mode.outer_momentum)
        self._uncontained: list[tuple[int, list[bytes]]] = []
        """Contributions that no result contains yet, each with the number of its last update."""

    # Steps.

    def step(self, change: Any = None) -> Procedure[int]:
        """Count a step that has changed the parameters, or changes them by this.

        After the last one of a round, contribute and wait for its result. Returns how many elements
        were contributed.
        """
        half = self._half
        if self._train(change):
            self._tally.steps += 1
            self._steps += 1
        else:
            self._tally.note_untrained()
        if half.is_paused:
            return 0
        if self._steps < self.mode.steps_between:
            half.applying.pull()
            self.look_ahead()
            return 0
        if self.overlaps:  # for the round of the contribution before
            yield from self.wait()
        elements = self.contribute() or 0
        if not self.overlaps:
            yield from self.wait()
        return elements

    @property
    def overlaps(self) -> bool:
        """Whether training goes on until the next contribution, and does not wait for the round."""
        return len(self._fragments) > 1

    def contribute(self, *, exact: bool = False) -> int | None:
        """Contribute what was changed since the last time; return how many elements that is.

        None where the master is about to end, and takes nothing any more.

        Parameters
        ----------
        exact : bool
            Whether all of it, at the resolution of the replica, but for a residual that is kept.
        """
        began = self._half.clock()
        shared, feedback, tally = self._shared, self._feedback, self._tally
        shared.parameters.gather()
        if self._averaged is not None and not exact:
            self._averaged.read()
        with self._membership.sending() as may_send, shared.changing:
            if not may_send:
                return None
            with self._half.divergence.named_errors():
                turns = None if exact else {self._turn}
                if self._ahead.is_anywhere:
                    feedback.check()  # before the parameters step back
                self._ahead.step_back(turns)
                bodies = self._encode(exact=exact)
            if exact:  # a round does not wait for it, and it makes no step by itself
                sent = self._half.outbox.hand_over(bodies)
            else:
                based_on = self._based_on()
                sent = self._half.outbox.hand_over(
                    bodies or [NOTHING], is_contribution=True, based_on=based_on
                )
                if self.overlaps:
                    self._ahead.take_off([decode(each, len(feedback.replica)) for each in bodies])
                    self._ahead.step_ahead(turns)
            self._note_contribution(bodies)
        shared.parameters.scatter()
        self._steps = 0
        tally.density = sent / len(feedback.replica)
        tally.encode_seconds += self._half.clock() - began
        self._half.divergence.note_step()
        return sent

    def wait(self) -> Procedure[None]:
        """Wait until a round contains what was contributed, and apply its result.

        Raises `DeadlineError` where that takes several timeouts.
        """
        membership, shared, began = self._membership, self._shared, self._half.clock()
        contributed = shared.versions[shared.rank]
        patience = 2 * self.mode.round_timeout_seconds + self._half.settings.reconnect_seconds
        waits = False
        while True:
            before = membership.news
            self._half.applying.pull()
            if shared.contained >= contributed or membership.stopping is not None:
                break
            if membership.closed:
                break
            if self._half.clock() >= began + patience:
                raise DeadlineError(
                    f"waited {patience:g} s for {self._purpose()}: look at the master's log"
                )
            waits = True
            yield Wait(lambda: membership.news != before, began + patience, self._purpose)  # noqa: B023
        self.look_ahead()
        self.settle()
        self._tally.steps_waited += waits
        self._tally.wait_seconds += self._half.clock() - began
        self._half.check_connected()

    def look_ahead(self) -> None:
        """Move the parameters ahead of the replica, as the results say that have come."""
        shared, ahead = self._shared, self._ahead
        has_landed = ahead.has_flight and shared.contained >= shared.versions[shared.rank]
        if not (shared.results or shared.misses_results or has_landed):
            return
        shared.parameters.gather()
        changed: set[int] = set()
        if has_landed:
            changed |= ahead.land()
        if shared.misses_results:
            shared.misses_results = False
            changed |= ahead.forget()
        changed |= self._note_results()
        ahead.step_back(changed)
        ahead.step_ahead(changed)
        shared.parameters.scatter()

    def _note_results(self) -> set[int]:
        """Note the results that have come; return the fragments that they change."""
        results, elements = self._shared.results, len(self._feedback.replica)
        first = self._rounds - len(results)
        changed: set[int] = set()
        for number in range(len(results)):
            updates = [decode(body, elements) for body in results.popleft()]
            changed |= self._ahead.note_result((first + number) % len(self._fragments), updates)
        return changed

    def settle(self) -> None:
        """Set the optimizer's state to that of the replica, if it is averaged."""
        if self._averaged is not None:
            self._averaged.write()

    @contextmanager
    def at_the_replica(self) -> Iterator[None]:
        """Have the parameters not ahead of the replica inside the block."""
        parameters = self._shared.parameters
        if not self._ahead.is_anywhere:
            yield
            return
        parameters.gather()
        self._ahead.step_back()
        parameters.scatter()
        try:
            yield
        finally:
            self._ahead.step_ahead()
            parameters.scatter()

    # The end, as in `Push`.

    def flush(self, portion: float | None = None) -> None:
        """Begin to contribute what is left; the mean of it counts, whatever the settings.

        Where contributions are sparse, `finish` takes the steps since the last one as one more of
        them, and leaves the residual: all residuals together are the noise of all workers, and no
        mean of further steps makes up for it. With a portion, of those that leave in the middle of
        the training, it is all.
        """
        self._rest_is_due = True
        self._keeps_residual = portion is None and self.mode.magnitude_max is None

    def flush_on(self) -> bool:
        """Contribute what is left; return whether that is done."""
        if self._rest_is_due and self.may_flush_on():
            self._rest_is_due = self.contribute(exact=True) is None
        return not self._rest_is_due

    def may_flush_on(self) -> bool:
        """Return whether something is left, and can be contributed now."""
        membership = self._membership
        return self._rest_is_due and membership.lost is None and membership.stopping is None

    @property
    def unflushed(self) -> int:
        """How many elements are left to look at."""
        return len(self._feedback.replica) if self._rest_is_due else 0

    def take_uncontained(self) -> Int32Array | None:
        """Return what was contributed and is neither in a result nor in the parameters; forget it.

        Returns
        -------
        ndarray of shape (N,), dtype int32, or None
            In quanta; None where there is nothing.
        """
        self.look_ahead()
        self._forget_contained()
        waiting, self._uncontained = self._uncontained, []
        if self._ahead.has_flight:
            del waiting[-1:]  # it is in the parameters
        if not waiting:
            return None
        elements = len(self._feedback.replica)
        quanta: Int32Array = np.zeros(elements, np.int32)
        for body in chain.from_iterable(bodies for _, bodies in waiting):
            update = decode(body, elements)
            quanta[update.start : update.stop] += update.change_of_range()
        return quanta

    # Private.

    def _note_contribution(self, bodies: list[bytes]) -> None:
        self._forget_contained()
        if bodies:
            self._uncontained.append((self._shared.versions[self._shared.rank], bodies))

    def _forget_contained(self) -> None:
        contained = self._shared.contained
        self._uncontained = [each for each in self._uncontained if each[0] > contained]

    @property
    def _rounds(self) -> int:
        """How many rounds the replica contains, where fragments take turns, else 0."""
        return int(self._feedback.replica.values_at(slice(-1, None))[0]) if self.overlaps else 0

    @property
    def _turn(self) -> int:
        """The fragment whose turn it is."""
        return self._rounds % len(self._fragments)

    def _based_on(self) -> int | None:
        """Return what a contribution says that it is based on; None for updates of others."""
        return None

    def _encode(self, *, exact: bool) -> list[bytes]:
        feedback, magnitude_max = self._feedback, self.mode.magnitude_max
        if exact:
            self._ahead.land()
            self._ahead.forget()
            if not self._keeps_residual:
                return self._encode_from(EXACT)
            return self._encode_some()
        if magnitude_max is not None:
            ranges = self._fragments[self._turn]
            return [
                *encode_dense(feedback, ranges, magnitude_max, bytes_max=UPDATE_BYTES_MAX),
                *self._encode_state(),
            ]
        return self._encode_some()

    def _encode_some(self) -> list[bytes]:
        """Encode the largest elements, or what has reached the threshold of the policy."""
        feedback, sparse = self._feedback, self.mode.sparse
        if sparse:
            return encode_largest(feedback, self._ranges, sparse, bytes_max=UPDATE_BYTES_MAX)
        thresholds = self._half.thresholds
        thresholds.aim(len(self._membership.peers), 1.0)
        threshold = thresholds.next()
        if threshold is None:
            return []
        bodies = self._encode_from(threshold)
        sent = sum(map(encoded_hits, bodies))
        thresholds.observe(sent=sent, size_bytes=sum(map(len, bodies)))
        self._tally.threshold = threshold * float(feedback.replica.quantum)
        return bodies

    def _encode_state(self) -> list[bytes]:
        """Encode what the optimizer keeps: values of parameters in 8 bits, of tensors exactly."""
        feedback, elements = self._feedback, len(self._feedback.replica)
        if self._averaged is None:
            return []
        bodies = encode_dense(
            feedback, self._state_ranges, STATE_MAGNITUDE_MAX, bytes_max=UPDATE_BYTES_MAX
        )
        if self._numbers_at < elements:
            bodies += self._encode_from(EXACT, self._numbers_at, elements)
        return bodies

    def _encode_from(self, threshold: int, start: int = 0, stop: int | None = None) -> list[bytes]:
        """Encode what has reached a threshold, and take it back out of replica and parameters.

        By default of all parameters.
        """
        feedback = self._feedback
        bodies = feedback.encode(
            threshold,
            magnitude_max=INT32_MAX,
            bytes_max=UPDATE_BYTES_MAX,
            start=start,
            stop=self._elements if stop is None else stop,
        )
        take_back(feedback, bodies)
        return bodies

    def _train(self, change: Any) -> bool:
        """Add a change, if one is given; return whether there is something to contribute."""
        if change is not None:
            parameters, flat = self._shared.parameters, self._flat(change)
            parameters.gather()
            self._feedback.add_change(flat)
            parameters.scatter()
        return True

    def _flat(self, change: Any) -> Float32Array:
        return self._shared.checked_change(change, self._elements)

    def _purpose(self) -> str:
        others = sorted(peer.rank for peer in self._membership.others)
        return f"the round of ranks {', '.join(map(str, others)) or 'none but ours'} to close"
