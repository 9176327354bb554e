"""`Following`: a standby's copy of the run that another master serves.

The standby receives the same messages as an observer: WELCOME, a snapshot, and the log. What comes
before the snapshot is added up, and the sum is added at the end: integers may be added in any
order. The run is an ordinary `Run`, so checkpoints of it are written, too.
"""

import logging

import numpy as np

from gradwire_codecs import MalformedUpdateError, Replica, Update, unpack_block
from gradwire_protocol import InvalidMessageError
from gradwire_protocol.messages.admission import Welcome
from gradwire_protocol.messages.link import EntriesReceived
from gradwire_protocol.messages.replicas import Snapshot
from gradwire_protocol.messages.snapshots import SnapshotAssembly, expand_block
from gradwire_protocol.messages.updates import EntriesAssembly
from gradwire_server.config import RelayLimits
from gradwire_server.log.received import next_received
from gradwire_server.log.segments import Segment
from gradwire_server.state.relay import Relay
from gradwire_server.state.run import Run

logger = logging.getLogger("gradwire.standby")

EARLY_MAX = 1_024
"""Messages stored until WELCOME has come. A lost WELCOME is sent again after some round trips, in
which a thousand workers send no more updates."""


class Following:
    """A copy of one run, as it arrives.

    Its relay keeps updates within `limits`, to serve workers after a takeover.
    """

    def __init__(self, limits: RelayLimits) -> None:
        self.run: Run | None = None
        self._limits = limits
        self._early: list[Snapshot | EntriesReceived] = []
        self._assembly: EntriesAssembly | None = None
        self._result: list[Update] | None = []
        """The updates of a round's result of which more come; None where some came in a sum."""
        self._apart: Replica | None = None
        """The sum of the updates that have overtaken the snapshot."""

    @property
    def complete(self) -> bool:
        """Whether the replica is complete."""
        return self.run is not None and self.run.founded

    def begin(self, welcome: Welcome, now: float) -> None:
        """Prepare for the run that a WELCOME describes."""
        if self.run is not None:
            raise InvalidMessageError("Welcome for a second time")
        assembly = SnapshotAssembly(welcome.layout.elements)
        replica = Replica(np.frombuffer(assembly.values, "<i4"), welcome.quantum_exponent)
        mode = welcome.mode
        relay = Relay(welcome.layout.elements, self._limits, has_rounds=mode.has_rounds)
        relay.start_from(welcome.place, welcome.versions)
        self._assembly = EntriesAssembly(welcome.layout.elements)
        self.run = Run(welcome.run, welcome.layout, replica, assembly, relay, mode=mode)
        self._apart = Replica(np.zeros(welcome.layout.elements, np.int32))
        early, self._early = self._early, []
        for message in early:
            self.receive(message, now)

    def receive(self, message: Snapshot | EntriesReceived, now: float) -> None:
        """Add a block of the replica, or entries of the log.

        Raises `InvalidMessageError` if it does not fit the run.
        """
        if self.run is None:
            if len(self._early) >= EARLY_MAX:
                raise InvalidMessageError(f"{EARLY_MAX} messages before WELCOME")
            self._early.append(message)
        elif isinstance(message, Snapshot):
            self._receive_block(self.run, message)
        else:
            self._receive_entries(self.run, message, now)

    def _receive_block(self, run: Run, block: Snapshot) -> None:
        if run.assembly is None or self._apart is None:
            raise InvalidMessageError("Snapshot after the last block")
        if run.assembly.accept_block(expand_block(block, run.layout.elements, unpack_block)):
            run.replica.values += self._apart.values
            self._apart = None
            run.found()
            logger.info(
                "the copy of run %r is complete, with %d updates",
                run.name, sum(run.relay.versions.values()),
            )  # fmt: skip

    def _receive_entries(self, run: Run, received: EntriesReceived, now: float) -> None:
        assembly, log = self._assembly, run.relay.log
        assert assembly is not None
        assembly.add(received.entries, received.number)
        while (received_next := next_received(log, assembly, now)) is not None:
            segment, _ = received_next
            try:
                change = segment.decoded(run.layout.elements)
                if self._apart is None:
                    run.apply_update(change, segment.updates)
                else:
                    self._apart.apply(change)
            except MalformedUpdateError as error:
                raise InvalidMessageError(
                    f"entries of the log up to {segment.stop}: {error}"
                ) from None
            run.relay.follow(segment)
            log.end_pass()
            if run.mode.has_outer_step:
                self._note_result(run, segment, change)
            if segment.closes and run.rounds is not None:
                run.rounds.remember(run.last_results, run.replica)

    def _note_result(self, run: Run, segment: Segment, change: Update) -> None:
        """Note an update of a round's result: the next step follows from it."""
        if segment.body is None:
            run.last_results, self._result = [], None
        elif self._result is not None:
            self._result.append(change)
        if segment.closes:
            if self._result is not None:
                results = [*run.last_results, self._result]
                run.last_results = results[-run.mode.results_kept :]
            self._result = []
