"""`Push`: encodes and sends what training changes, and at the end the residual.

It belongs to the training half of a worker. A step sends what has reached the threshold; the rest
stays in the residual for later steps. While the network is behind, a step sends nothing, and
nothing is lost by that.
"""

import logging
from collections import deque
from typing import Any, Final

import numpy as np

from gradwire.errors import UsageError
from gradwire.replica.outbox import LineLimit
from gradwire.replica.scaled_change import ScaledChange
from gradwire.replica.training_half import TrainingHalf
from gradwire_codecs.arrays import Float32Array
from gradwire_codecs.format.header import INT32_MAX
from gradwire_protocol.limits import MIB
from gradwire_protocol.messages.updates import UPDATE_BYTES_MAX

logger = logging.getLogger("gradwire.session")

FLUSH_BYTES_MAX: Final = 8 * MIB
"""Bytes that all workers together have on their way to the slowest one when each sends its whole
residual at the end: half of what the master has under way to a worker."""

ELEMENT_BYTES_MAX: Final = 8
"""Most bytes that an element takes in an encoded update of more than a few elements."""


class Push:
    """Encodes and sends the changes of one worker."""

    def __init__(self, half: TrainingHalf) -> None:
        self._half = half
        self._shared = half.shared
        self._parameters = half.parameters
        self._feedback = half.feedback
        self._membership = half.membership
        self._compensation = half.compensation
        self._divergence = half.divergence
        self._outbox = half.outbox
        self._tally = half.tally
        self._line = LineLimit(half.membership, half.outbox, half.tally, lambda: half.worker.rtt)
        self._flush = ResidualFlush(0, 1)
        self.due = True
        """Whether there may be more to send than in the last update."""
        self.dropped: Float32Array | None = None
        """The part of the residual that `flush` left out, if it did."""

    # Steps.

    def push(self, change: Any = None) -> int:
        """Add a change to the parameters, if one is given, and send what reaches the threshold.

        Where nothing was trained, as in a step that accumulates gradients or that a `GradScaler`
        has skipped, nothing is sent, whatever the residual holds.

        Returns how many elements the sent updates change. Where it raises, nothing was changed or
        sent.
        """
        self._parameters.gather()
        self.due = self._parameters.changed() or change is not None or self.due
        if not self.due:
            self._tally.note_untrained()
            return 0
        scaled = self._shared.scaled_change
        if change is None and scaled is None:
            elements = self._send()
        else:
            try:
                with self._feedback.restoring_on_error():
                    if change is not None:
                        self._add(change)
                    elements = self._send() if scaled is None else self._send_scaled(scaled)
            except UsageError:
                self._parameters.scatter()
                raise
        self._scatter_sent()
        self._divergence.note_step()
        return elements

    def tell_clock(self) -> None:
        """Send what the last steps have changed, if the network was behind and no longer is."""
        self._parameters.gather()
        with self._membership.sending() as may_send:
            if may_send and self._outbox.may_tell_clock:
                with self._shared.undisturbed():  # no step multiplies what is sent here
                    self._encode()
        self._scatter_sent()

    # The end.

    def flush(self, portion: float | None = None) -> None:
        """Begin to send a portion of the residual; `flush_on` sends it range by range.

        Without `portion` it is as much as the setting `finish_residual` says.
        """
        self._parameters.gather()
        with self._divergence.named_errors():
            self._feedback.check()
        if portion is None:
            portion = self._final_portion()
        self._tally.final_residual_portion = portion
        if not portion:
            return
        if self._shared.scaled_change is not None:
            self._shared.scaled_change.apply()
        if portion < 1.0:
            residual = self._shared.take_residual_out()
            self.dropped = residual * np.float32(1.0 - portion)
            residual -= self.dropped
            self._shared.put_residual_back(residual)
        self._flush = ResidualFlush(len(self._feedback.replica), len(self._membership.peers))

    def flush_on(self) -> bool:
        """Send as much of the residual as the others keep up with; return whether that is all.

        What is not sent yet stays in the residual, where a checkpoint finds it.
        """
        shared = self._shared
        while self.may_flush_on():
            start, stop = self._flush.range
            with self._membership.sending() as may_send, shared.changing:
                if not may_send:
                    break
                with self._divergence.named_errors():
                    bodies = self._feedback.encode(
                        1,
                        magnitude_max=INT32_MAX,
                        bytes_max=UPDATE_BYTES_MAX,
                        start=start,
                        stop=stop,
                    )
                self._outbox.hand_over(bodies)
            self._flush.note_sent(stop, shared.versions[shared.rank], sum(map(len, bodies)))
        self._scatter_sent()
        return not self._flush.left

    def may_flush_on(self) -> bool:
        """Return whether the slowest worker has taken enough of the residual to be sent more."""
        membership = self._membership
        return (
            membership.lost is None
            and membership.stopping is None
            and self._flush.may_go_on(membership.stable.get(self._shared.rank, 0))
        )

    @property
    def unflushed(self) -> int:
        """How many elements of the residual `flush_on` has not looked at yet."""
        return self._flush.left

    # Private.

    def _final_portion(self) -> float:
        match self._half.settings.finish_residual:
            case "send":
                return 1.0
            case "drop":
                return 0.0
        portion = self._compensation.final_residual_portion()
        logger.info(
            "finish_residual='auto': %.0f %% of the residual is sent, after %d steps",
            100.0 * portion,
            self._tally.steps,
        )
        return portion

    def _add(self, change: Any) -> None:
        flat = self._shared.checked_change(change)
        if self._shared.scaled_change is None and self._compensation.varies:
            flat = flat * np.float32(self._compensation.change_factor())
        self._feedback.add_change(flat)
        self._parameters.scatter()

    def _send_scaled(self, scaled: ScaledChange) -> int:
        """Multiply what has changed, then do the same as `_send`."""
        with self._divergence.named_errors():
            self._feedback.check_finite()
        scaled.apply()
        elements = self._send()
        scaled.note()
        return elements

    def _send(self) -> int:
        """Send what is due, unless the network is behind; return how many elements that changes."""
        self._compensation.note_change()
        self._tally.steps += 1
        if self._outbox.clock:
            self._outbox.clock += 1
        with self._membership.sending() as may_send:
            sends = may_send and not self._outbox.is_behind()
            elements = self._encode() if sends else 0
        if sends:
            self.due = False
        else:
            self._tally.steps_deferred += 1
            with self._divergence.named_errors():
                self._feedback.check_finite()
                self._feedback.absorb()
            self._compensation.note_step(0)
        self._compensation.note_rest()
        return elements

    def _encode(self) -> int:
        """Encode what has reached the threshold; return how many elements that changes."""
        clock, thresholds = self._half.clock, self._half.thresholds
        shared, tally, began = self._shared, self._tally, clock()
        thresholds.aim(len(self._membership.peers), self._line.look())
        with self._divergence.named_errors():
            threshold = thresholds.next()
        if threshold is None:
            with shared.changing:
                return self._outbox.hand_over([])
        with shared.changing:
            with self._divergence.named_errors():
                bodies = self._feedback.encode(threshold, bytes_max=UPDATE_BYTES_MAX)
            sent = self._outbox.hand_over(bodies)
        self._compensation.note_step(self._feedback.quanta_sent)
        tally.density = thresholds.observe(sent=sent, size_bytes=sum(map(len, bodies)))
        tally.threshold = thresholds.last * shared.quantum
        tally.encode_seconds += clock() - began
        return sent

    def _scatter_sent(self) -> None:
        """Write the parameters to the target, if encoding changes them."""
        if self._feedback.stores_residual:
            self._parameters.scatter()


class ResidualFlush:
    """The part of a residual that is still to be sent: as fast as the slowest worker takes it.

    It says which range of elements is next, and when. `Push` encodes and sends.

    Parameters
    ----------
    elements : int
        Length of the residual.
    workers : int
        How many flush at the same time.
    """

    def __init__(self, elements: int, workers: int) -> None:
        self._elements = elements
        self._bytes_max = FLUSH_BYTES_MAX // max(workers, 1)
        self._under_way: deque[tuple[int, int]] = deque()
        """Sequence and bytes of each sent update that some worker lacks."""
        self.left = elements
        """How many elements were not looked at yet."""

    @property
    def range(self) -> tuple[int, int]:
        """Start and stop of the next range of elements."""
        start = self._elements - self.left
        return start, min(start + max(self._piece_bytes // ELEMENT_BYTES_MAX, 1), self._elements)

    def note_sent(self, stop: int, sequence: int, size_bytes: int) -> None:
        """Note that all before `stop` was sent, its last part as update `sequence`."""
        self.left = self._elements - stop
        self._under_way.append((sequence, size_bytes))

    def may_go_on(self, stable: int) -> bool:
        """Return whether there is more, and the slowest worker has taken enough for it.

        `stable` is the sequence of our last update that every worker has.
        """
        while self._under_way and self._under_way[0][0] <= stable:
            self._under_way.popleft()
        size = sum(size for _, size in self._under_way)
        return self.left > 0 and (not size or size + self._piece_bytes <= self._bytes_max)

    @property
    def _piece_bytes(self) -> int:
        """Most bytes that one encoded range takes."""
        return min(self._bytes_max // 2, UPDATE_BYTES_MAX)
