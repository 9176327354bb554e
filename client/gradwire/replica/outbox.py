"""`Outbox`: own updates on their way from the training half of a worker to the network half.

Each is numbered, put into the log that both halves share, and posted. The last of a step carries
the clock, where one is told: how many steps this worker has made.
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
"""Own updates that the master does not have yet. Beyond either bound a step sends nothing: its
change waits in the residual, where it costs no memory, and goes out with a later step."""


class Outbox:
    """Takes encoded updates.

    Parameters
    ----------
    shared : SharedParameters
        Which contain them.
    membership : Membership
    worker : Worker
        Which they are posted to.
    tally : Tally
        Where they are counted.
    """

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
        """How many steps there were by a clock that is told with updates; 0 where none is."""
        self._clock_told = 0
        self.pace = 0
        """What is told beside the clock: how many microseconds a step takes without waits."""

    def hand_over(self, bodies: list[bytes]) -> int:
        """Post encoded updates to the network half; return how many elements they change.

        Without any, the others are told of steps that they do not know of, if there are some.
        To be called while the replica is `changing`, in a block of `Membership.sending`.
        """
        if not bodies:
            if self._clock_told == self.clock:
                return 0
            bodies = [NOTHING]
        self._clock_told = self.clock
        shared, membership, tally = self._shared, self._membership, self._tally
        based_on = count_updates(shared.versions, without=shared.rank)
        elements = sum(map(encoded_hits, bodies))
        if membership.comparison is None:
            shared.repair.forget_corrections(membership.stable.get(shared.rank, 0))
        updates = []
        for number, body in enumerate(bodies, 1):
            shared.versions[shared.rank] += 1
            clock = self.clock if number == len(bodies) else 0
            sequence, pace = shared.versions[shared.rank], self.pace if clock else 0
            updates.append(OwnUpdate(sequence, based_on, body, clock, pace))
            self._worker.own_updates.append(updates[-1])
        tally.updates_sent += len(bodies)
        tally.elements_sent += elements
        tally.bytes_encoded += sum(map(len, bodies))
        membership.own_staleness.on_sent(len(bodies), shared.read_at)
        # Last: the thread that this wakes takes the GIL as soon as we let go of it.
        membership.post(self._worker.push, updates)
        return elements

    def is_behind(self) -> bool:
        """Return whether the network has enough to do with what it was given."""
        tally, membership = self._tally, self._membership
        return (
            membership.lost is not None
            or tally.bytes_encoded - membership.bytes_delivered > OUTBOX_BYTES_MAX
            or tally.updates_sent - membership.updates_delivered > OUTBOX_UPDATES_MAX
        )

    # The clock.

    def begin_clock(self, clock: int) -> None:
        """Count steps from here on; the first step tells of it."""
        self.clock = self._clock_told = clock

    def announce_clock(self) -> None:
        """Tell the clock at once, with an update that changes nothing."""
        self._clock_told = 0
        with self._membership.sending() as may_send, self._shared.changing:
            if may_send and not self.is_behind():
                self.hand_over([])

    @property
    def may_tell_clock(self) -> bool:
        """Whether the others do not know of all steps, and could be told."""
        return self._clock_told != self.clock and not self.is_behind()
