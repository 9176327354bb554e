"""`Push`: encodes and sends what training changes, and at the end the residual.

It belongs to the training half of a worker. A step sends what has reached the threshold; the rest
stays in the residual for later steps. While the network is behind, a step sends nothing, and
nothing is lost by that.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from gradwire.errors import UsageError
from gradwire.replica.compensation import Compensation
from gradwire.replica.divergence import Divergence
from gradwire.replica.line_limit import LineLimit
from gradwire.replica.outbox import Outbox
from gradwire.replica.residual_flush import ResidualFlush
from gradwire.replica.shared_parameters import SharedParameters
from gradwire.replica.stats import Tally
from gradwire.replica.thresholds import Thresholds
from gradwire.settings.settings import Settings
from gradwire.worker.membership import Membership
from gradwire_codecs.arrays import Float32Array
from gradwire_protocol.messages.updates import UPDATE_BYTES_MAX

logger = logging.getLogger("gradwire.session")

INT32_MAX: Final = 2**31 - 1


class Push:
    """Encodes and sends the changes of one worker."""

    def __init__(
        self,
        *,
        settings: Settings,
        shared: SharedParameters,
        membership: Membership,
        thresholds: Thresholds,
        compensation: Compensation,
        divergence: Divergence,
        outbox: Outbox,
        line: LineLimit,
        tally: Tally,
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._shared = shared
        self._parameters = shared.parameters
        self._feedback = shared.feedback
        self._membership = membership
        self._thresholds = thresholds
        self._compensation = compensation
        self._divergence = divergence
        self._outbox = outbox
        self._line = line
        self._tally = tally
        self._clock = clock
        self._flush = ResidualFlush(0, 1)
        self.due = True
        """Whether there may be more to send than in the last update."""
        self.dropped: Float32Array | None = None
        """The part of the residual that `flush` left out, if it did."""

    # Steps.

    def skip(self) -> None:
        """Count a step in which nothing was trained: nothing is sent."""
        self._tally.steps += 1
        self._tally.steps_untrained += 1

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
            self.skip()
            return 0
        if change is None and self._shared.scaled_change is None:
            elements = self._send()
        else:
            try:
                with self._feedback.restoring_on_error():
                    if change is not None:
                        self._add(change)
                    elements = self._send_scaled()
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
        match self._settings.finish_residual:
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

    def _send_scaled(self) -> int:
        """Multiply what has changed, then do the same as `_send`."""
        scaled = self._shared.scaled_change
        if scaled is None:
            return self._send()
        with self._divergence.named_errors():
            self._feedback.check_finite()
        scaled.apply()
        elements = self._send()
        scaled.note()
        return elements

    def _send(self) -> int:
        """Send what is due, unless the network is behind; return how many elements that changes."""
        self._compensation.note_change()
        elements = self._send_due()
        self._compensation.note_rest()
        return elements

    def _send_due(self) -> int:
        self._tally.steps += 1
        if self._outbox.clock:
            self._outbox.clock += 1
        with self._membership.sending() as may_send:
            if may_send and not self._outbox.is_behind():
                elements = self._encode()
                self.due = False
                return elements
        self._tally.steps_deferred += 1
        with self._divergence.named_errors():
            self._feedback.check_finite()
            self._feedback.absorb()
        self._compensation.note_step(0)
        return 0

    def _encode(self) -> int:
        """Encode what has reached the threshold; return how many elements that changes."""
        began = self._clock()
        shared, tally, thresholds = self._shared, self._tally, self._thresholds
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
        tally.encode_seconds += self._clock() - began
        return sent

    def _scatter_sent(self) -> None:
        """Write the parameters to the target, if encoding changes them."""
        if self._feedback.stores_residual:
            self._parameters.scatter()
