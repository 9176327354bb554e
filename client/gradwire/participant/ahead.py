"""`Ahead`: how far a worker's parameters are ahead of its replica, besides what it has trained.

With DiLoCo, the outer optimizer's parameters are ahead of the replica by a part of its last step.
Where training goes on while a round does, so is what was contributed to it. Neither counts as
trained: before a contribution is encoded, the parameters step back.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from gradwire_codecs import Feedback, Update
from gradwire_codecs.arrays import Float32Array, Int32Array
from gradwire_codecs.replica.outer_step import look_ahead


class Ahead:
    """What is ahead, fragment by fragment.

    Parameters
    ----------
    feedback : Feedback
        Over the parameters.
    fragments : sequence of sequence of (int, int)
        The ranges of each.
    momentum : float
        Of the outer optimizer.
    """

    def __init__(
        self, feedback: Feedback, fragments: Sequence[Sequence[tuple[int, int]]], momentum: float
    ) -> None:
        self._feedback = feedback
        self._momentum = momentum
        self._spans = [slice(e[0][0], e[-1][1]) if e else slice(0, 0) for e in fragments]
        self._elements = max(span.stop for span in self._spans)
        self._look_ahead: Int32Array | None = None
        """Of the outer optimizer, in quanta; None for nowhere."""
        self._in_flight: Sequence[Update] = ()
        self._added: dict[int, Float32Array] = {}
        """By fragment: what was added to the parameters."""

    @property
    def is_anywhere(self) -> bool:
        """Whether parameters are ahead now."""
        return bool(self._added)

    @property
    def has_flight(self) -> bool:
        """Whether something that was contributed is in the parameters."""
        return bool(self._in_flight)

    # What is ahead.

    def take_off(self, contributed: Sequence[Update]) -> None:
        """Note what was contributed and stays in the parameters, from the next `step_ahead` on."""
        self._in_flight = contributed

    def land(self) -> set[int]:
        """Note that the replica contains it; return the fragments that this changes."""
        landed, self._in_flight = self._in_flight, ()
        return self.fragments_of(landed)

    def note_result(self, turn: int, updates: Sequence[Update]) -> set[int]:
        """Note a result that the replica contains; return the fragments that it changes.

        Parameters
        ----------
        turn : int
            The fragment whose round it was.
        """
        if self._look_ahead is None:
            self._look_ahead = np.zeros(self._elements, np.int32)
        self._look_ahead[self._spans[turn]] = 0
        look_ahead(updates, self._momentum, self._look_ahead)
        return {turn, *self.fragments_of(updates)}

    def forget(self) -> set[int]:
        """Note that results are not known; return the fragments that this changes."""
        self._look_ahead = None
        return set(range(len(self._spans)))

    def fragments_of(self, updates: Iterable[Update]) -> set[int]:
        """Return which fragments updates are of."""
        return {
            number
            for update in updates
            for number, span in enumerate(self._spans)
            if update.start < span.stop and span.start < update.stop
        }

    # The parameters.

    def step_back(self, fragments: Iterable[int] | None = None) -> None:
        """Take out of the parameters how far they are ahead; of all fragments, or of these."""
        for number in list(self._added) if fragments is None else fragments:
            if (added := self._added.pop(number, None)) is not None:
                self._feedback.add_change(-added, self._spans[number].start)

    def step_ahead(self, fragments: Iterable[int] | None = None) -> None:
        """Have the parameters ahead, of all fragments or of these, after `step_back`."""
        for number in range(len(self._spans)) if fragments is None else fragments:
            if (ahead := self._quanta_of(number)) is not None:
                added = ahead.astype(np.float32)
                added *= np.float32(self._feedback.replica.quantum)
                self._added[number] = added
                self._feedback.add_change(added, self._spans[number].start)

    def _quanta_of(self, number: int) -> Int32Array | None:
        span = self._spans[number]
        flying = [each for each in self._in_flight if span.start <= each.start < span.stop]
        if self._look_ahead is None and not flying:
            return None
        quanta: Int32Array = np.zeros(span.stop - span.start, np.int32)
        if self._look_ahead is not None:
            quanta += self._look_ahead[span]
        for update in flying:
            quanta[update.start - span.start : update.stop - span.start] += update.change_of_range()
        return quanta
