"""`Following`: a standby's copy of the run that another master serves.

It comes as it comes to an observer, a WELCOME, a snapshot and every update, in any order. Updates
that overtake the snapshot are summed up and added at the end: whole numbers may be added in any
order, and what is summed up holds nobody's credit, as it would if it waited. The run is a `Run` as
any, so it is written as a checkpoint, too.
"""

import logging

import numpy as np

from gradwire_codecs import MalformedUpdateError, Replica, decode, unpack_block
from gradwire_protocol import InOrder, InvalidMessageError
from gradwire_protocol.messages.admission import Welcome
from gradwire_protocol.messages.link import UpdateReceived
from gradwire_protocol.messages.replicas import Snapshot
from gradwire_protocol.messages.snapshots import SnapshotAssembly, expand_block
from gradwire_server.config import RelayLimits
from gradwire_server.state.relay import Relay
from gradwire_server.state.run import Run

logger = logging.getLogger("gradwire.standby")

EARLY_MAX = 1_024
"""Messages held until the WELCOME has come. It is repeated every few round trips where it is lost,
and a thousand workers send no more updates in that time."""


class Following:
    """What has come of one run.

    Parameters
    ----------
    limits : RelayLimits
        What is kept of its updates for workers that lack some of them, and more.
    """

    def __init__(self, limits: RelayLimits) -> None:
        self.run: Run | None = None
        self._limits = limits
        self._early: list[Snapshot | UpdateReceived] = []
        self._origins: dict[int, InOrder[UpdateReceived]] = {}
        self._apart: Replica | None = None
        """The sum of the updates that have overtaken the snapshot."""

    @property
    def complete(self) -> bool:
        """Whether there is a replica to go on with."""
        return self.run is not None and self.run.founded

    def begin(self, welcome: Welcome) -> None:
        """Make room for a run."""
        if self.run is not None:
            raise InvalidMessageError("Welcome for a second time")
        assembly = SnapshotAssembly(welcome.layout.elements)
        replica = Replica(np.frombuffer(assembly.values, "<i4"), welcome.quantum_exponent)
        relay = Relay(welcome.layout.elements, self._limits)
        relay.go_on_from(welcome.versions)
        self.run = Run(welcome.run, welcome.layout, replica, assembly, relay)
        self._apart = Replica(np.zeros(welcome.layout.elements, np.int32))
        early, self._early = self._early, []
        for message in early:
            self.receive(message)

    def receive(self, message: Snapshot | UpdateReceived) -> None:
        """Take a block of the replica, or an update.

        Raises
        ------
        InvalidMessageError
            If it does not fit.
        """
        if self.run is None:
            if len(self._early) >= EARLY_MAX:
                raise InvalidMessageError(f"{EARLY_MAX} messages before WELCOME")
            self._early.append(message)
        elif isinstance(message, Snapshot):
            self._take_block(self.run, message)
        else:
            self._take_update(self.run, message)

    def _take_block(self, run: Run, block: Snapshot) -> None:
        if run.assembly is None or self._apart is None:
            raise InvalidMessageError("Snapshot behind its end")
        if run.assembly.accept_block(expand_block(block, run.layout.elements, unpack_block)):
            run.replica.values += self._apart.values
            self._apart = None
            run.found()
            logger.info(
                "there is a copy of run %r with %d updates",
                run.name, sum(run.relay.versions.values()),
            )  # fmt: skip

    def _take_update(self, run: Run, received: UpdateReceived) -> None:
        rank, sequence = received.rank, received.update.sequence
        if rank not in self._origins:
            self._origins[rank] = InOrder(run.relay.next_of(rank))
        origin = self._origins[rank]
        if origin.is_duplicate(sequence):
            raise InvalidMessageError(f"update {sequence} of rank {rank} for a second time")
        for ready in origin.insert(sequence, received):
            try:
                update = decode(ready.update.body, run.layout.elements)
                if self._apart is None:
                    run.apply_update(rank, update)
                else:
                    self._apart.apply(update)
            except MalformedUpdateError as error:
                raise InvalidMessageError(f"update of no use: {error}") from None
            run.relay.keep_update(rank, ready.update.sequence, ready.message)
