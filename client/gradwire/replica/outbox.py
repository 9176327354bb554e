"""`Outbox`: own updates on their way from the training half of a worker to the network half.

Each update gets its number, goes into the log that both halves share, and is posted. With a bound
on staleness, the last update of a step carries the clock: how many steps this worker has made.
"""

from typing import Final

from gradwire.replica.shared_parameters import SharedParameters
from gradwire.replica.stats import Tally
from gradwire.worker.membership import Membership
from gradwire.worker.update_log import OwnUpdate
from gradwire.worker.worker import Worker
from gradwire_codecs import NOTHING, encoded_hits
from gradwire_protocol.limits import MIB
from gradwire_protocol.messages.fields import count_updates

OUTBOX_BYTES_MAX: Final = 8 * MIB
OUTBOX_UPDATES_MAX: Final = 64
"""Limits of own updates that the master does not have yet, or that have not come back from it where
updates are merged. Beyond either, a step sends nothing: its
change stays in the residual, where it costs no memory, and goes out with a later step."""


class Outbox:
    """Numbers, logs and posts encoded updates."""

    def __init__(
        self,
        shared: SharedParameters,
        membership: Membership,
        worker: Worker,
        tally: Tally,
    ) -> None:
        self._shared = shared
        self._membership = membership
        self._worker = worker
        self._tally = tally
        self.clock = 0
        """Steps of this worker by the clock that is told with updates; 0 if none is told."""
        self._clock_told = 0
        self.pace = 0
        """Microseconds that a step takes without waits; told beside the clock."""

    def hand_over(
        self, bodies: list[bytes], *, is_contribution: bool = False, based_on: int | None = None
    ) -> int:
        """Post encoded updates to the network half; return how many elements they change.

        Without any, an empty update tells the clock, if the others do not know it yet. The caller
        holds `SharedParameters.changing`, in a block of `Membership.sending`. A contribution to a
        round ends with the last one. They are based on so many updates of others as this worker
        has, unless it is said.
        """
        if not bodies:
            if self._clock_told == self.clock:
                return 0
            bodies = [NOTHING]
        self._clock_told = self.clock
        shared, membership, tally = self._shared, self._membership, self._tally
        if based_on is None:
            based_on = count_updates(shared.versions, without=shared.rank)
        elements = sum(map(encoded_hits, bodies))
        if membership.comparison is None:
            shared.repair.forget_corrections(membership.stable.get(shared.rank, 0))
        updates = []
        for number, body in enumerate(bodies, 1):
            shared.versions[shared.rank] += 1
            clock = self.clock if number == len(bodies) else 0
            sequence, pace = shared.versions[shared.rank], self.pace if clock else 0
            is_last = is_contribution and number == len(bodies)
            updates.append(OwnUpdate(sequence, based_on, body, clock, pace, is_last))
            self._worker.own_updates.append(updates[-1])
            shared.note_sent(updates[-1])
        tally.updates_sent += len(bodies)
        tally.elements_sent += elements
        tally.bytes_encoded += sum(map(len, bodies))
        membership.own_staleness.on_sent(len(bodies), shared.read_at)
        # Last: this wakes the network thread, which takes the GIL as soon as it is released.
        membership.post(self._worker.push, updates)
        return elements

    def is_behind(self) -> bool:
        """Return whether the connection is lost, or the outbox is over one of its limits."""
        tally, membership, shared = self._tally, self._membership, self._shared
        return (
            membership.lost is not None
            or shared.bytes_beforehand > OUTBOX_BYTES_MAX
            or len(shared.beforehand) > OUTBOX_UPDATES_MAX
            or tally.bytes_encoded - membership.bytes_delivered > OUTBOX_BYTES_MAX
            or tally.updates_sent - membership.updates_delivered > OUTBOX_UPDATES_MAX
        )

    # The clock.

    def begin_clock(self, clock: int) -> None:
        """Count steps from this one on; the first step tells the clock."""
        self.clock = self._clock_told = clock

    def announce_clock(self) -> None:
        """Tell the clock at once, with an update that changes nothing."""
        self._clock_told = 0
        with self._membership.sending() as may_send, self._shared.changing:
            if may_send and not self.is_behind():
                self.hand_over([])

    @property
    def may_tell_clock(self) -> bool:
        """Whether the others do not know all steps, and the network could tell them."""
        return self._clock_told != self.clock and not self.is_behind()
