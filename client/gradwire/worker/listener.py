"""`Listener`: what a `Worker` tells whoever trains.

The worker lives on the network thread, and calls these there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gradwire.errors import GradwireError
from gradwire.worker.peer_sequences import Sum
from gradwire_protocol.messages.admission import Peer, Welcome
from gradwire_protocol.messages.replicas import Blocks
from gradwire_protocol.messages.states import Buffers
from gradwire_protocol.messages.updates import EncodedUpdate


@dataclass(frozen=True, slots=True)
class Rebase:
    """Blocks of the master's replica in place of the worker's own."""

    blocks: Blocks
    """What the worker compared its replica with."""
    values: Mapping[int, bytes]
    """By number, the blocks that differ: little-endian int32."""
    missed: bool
    """Whether they differ because of updates that the worker has missed, and that are in its
    replica from now on; else because of damage."""


class Listener(Protocol):
    """Receives what a worker learns; every method returns at once."""

    def on_welcome(self, welcome: Welcome) -> None:
        """Note that we take part. With `founder` set, `Worker.found` is due."""

    def on_snapshot_progress(self, elements: int) -> None:
        """Note how many elements of the replica have come."""

    def on_live(self, snapshot: memoryview | None) -> None:
        """Begin: the replica is here, or, for the founder (None), there."""

    def on_lost(self, reason: str) -> None:
        """Note that the connection is lost, and that the worker dials again."""

    def on_wanted(self) -> None:
        """Note that the master was started anew and wants our replica: `Worker.found_again`."""

    def on_resync(self, versions: Mapping[int, int]) -> None:
        """Keep the updates beyond these for the replica that comes; it is not here yet."""

    def on_anew(self) -> None:
        """Forget the updates that have come: what they are for comes anew, with others."""

    def on_part(self, values: memoryview, blocks: Blocks) -> tuple[int, ...]:
        """Apply the updates that have come to the part of a replica that has.

        Returns the numbers of the blocks that differ from the master's, those included that are
        not there. Updates that `on_resync` was about come after it.
        """

    def on_back(self, rebase: Rebase | None) -> None:
        """Note that it takes part again: with its replica, or with another one in its place."""

    def on_blocks(self, blocks: Blocks, *, missed: bool) -> None:
        """Compare our replica with the master's: `Worker.want` is due.

        It has missed updates, or is damaged.
        """

    def on_mended(self, rebase: Rebase | None) -> None:
        """Put blocks in the place of damaged ones; None where there is nothing to be mended."""

    def on_update(self, rank: int, update: EncodedUpdate) -> None:
        """Take a peer's update: each comes once, in the order of its origin."""

    def on_sum(self, total: Sum) -> None:
        """Take updates of peers that the master has added up, as we did not keep up with them."""

    def on_correction(self, correction: EncodedUpdate) -> None:
        """Add what the master has clipped off an update of ours, with the sign turned."""

    def on_delivered(self, size: int) -> None:
        """Note that the master has an update of ours with a body of so many bytes."""

    def on_roster(self, peers: Sequence[Peer]) -> None:
        """Note who takes part now."""

    def on_buffers(self, buffers: Mapping[int, Buffers]) -> None:
        """Note what the buffers of others hold, by rank; these are all there are.

        Where our own rank is among them, without values, ours do not count.
        """

    def on_stable(self, versions: Mapping[int, int]) -> None:
        """Note that every live worker has these updates."""

    def on_finished(self, versions: Mapping[int, int]) -> None:
        """Note that all workers have finished; these are all updates."""

    def on_stopping(self, reason: str) -> None:
        """Note that the master is about to end: after what is being pushed, `Worker.comply`."""

    def on_closed(self, error: GradwireError | None) -> None:
        """Note that it is over; without an error where we wanted it."""
