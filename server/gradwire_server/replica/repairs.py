"""Repairs: a worker's replica is checked by its digest, and repaired block by block.

::

    worker                             master
    DIGEST, every few seconds   ──▶    is it the digest of the updates? if not,
    which blocks differ?        ◀──    BLOCKS: the digests of all blocks, of a copy
    WANT                        ──▶
    replace these blocks        ◀──    these blocks of the copy

The same exchange updates a worker that returns after the log has dropped updates that it lacks.

A copy takes as much memory as the replica, and up to a quarter more while it is made. All workers
that need one of the same moment share it. It is kept until the worker has answered and received its
blocks, for some minutes at most.
"""

import logging
from typing import Final

from gradwire_protocol import InvalidMessageError
from gradwire_protocol.messages.replicas import Digest, Want
from gradwire_protocol.messages.snapshots import SnapshotFeed
from gradwire_server.series.journal import Happening
from gradwire_server.state.replica_copy import ReplicaCopy
from gradwire_server.state.roster import Member, Offer, Phase
from gradwire_server.state.state import State

logger = logging.getLogger("gradwire.master")

PAUSE_SECONDS: Final = 10.0
"""Least time between two repairs of one worker: wrong digests must not keep the master busy."""

OFFER_SECONDS: Final = 600.0
"""How long a copy is kept for a worker that does not answer. Its training thread answers, between
two steps; one that answers later is offered another copy."""


def offer(member: Member, copy: ReplicaCopy, now: float) -> None:
    """Let a worker compare its replica with a copy of the master's."""
    member.offer = Offer(copy, now + OFFER_SECONDS)
    member.link.send(copy.blocks)


class Repairs:
    """Checks and repairs the replicas of workers."""

    def __init__(self, state: State) -> None:
        self._state = state

    def receive_digest(self, member: Member, digest: Digest) -> None:
        """Store the digest of a worker's replica, and check it."""
        member.unchecked_digest = digest
        self.check_digest(member)

    def check_digest(self, member: Member) -> None:
        """Check the stored digest of a worker, once all updates in its replica were accepted."""
        run, claim = self._state.run, member.unchecked_digest
        if run is None or run.digests is None or claim is None:
            return
        busy = member.offer is not None or member.feed is not None
        if member.phase is not Phase.LIVE or busy or claim.position > run.relay.log.head:
            return
        member.unchecked_digest = None
        expected = run.digests.at(claim.position)
        if expected is None:
            return
        metrics = self._state.metrics
        metrics.digest_checks.inc()
        if claim.digest == expected:
            return
        metrics.digest_mismatches.inc()
        text = (
            f"the replica of {member.name} is not what its updates lead to: its machine's memory "
            "was damaged, or it has an error; it is sent the digests of all blocks"
        )
        self._state.note(Happening.REPAIRED, text, rank=member.rank, level=logging.WARNING)
        now = self._state.now
        if member.repaired_at is None or now >= member.repaired_at + PAUSE_SECONDS:
            member.repaired_at = now
            offer(member, run.copy(), now)
            self._state.queues_grew = True

    def receive_want(self, member: Member, want: Want) -> None:
        """Send a worker the blocks that it asks for.

        Raises `InvalidMessageError` if it was not offered any, or the run has no such block.
        """
        if member.offer is None:
            raise InvalidMessageError(f"Want from {member.name}, which was offered no blocks")
        copy, member.offer = member.offer.copy, None
        if copy is None:
            assert self._state.run is not None
            offer(member, self._state.run.copy(), self._state.now)
            return
        numbers = sorted(set(want.blocks))
        if numbers and numbers[-1] >= len(copy):
            raise InvalidMessageError(f"{member.name} wants block {numbers[-1]} of {len(copy)}")
        if member.phase is Phase.LIVE and numbers:
            logger.warning("%s is sent blocks %s again", member.name, _shown(numbers))
            self._state.metrics.blocks_repaired.inc(len(numbers))
        elif numbers:
            logger.info("%s is sent %d of %d blocks", member.name, len(numbers), len(copy))
        if numbers:
            member.feed = SnapshotFeed(copy.block, numbers, member.link)
            self._state.queues_grew = True
        else:
            self.finish_feed(member)

    def finish_feed(self, member: Member) -> None:
        """Note that all blocks were delivered to a worker."""
        member.feed = None
        if member.phase is Phase.SYNCING:
            member.move_to(Phase.LIVE)
            self._state.metrics.snapshots_sent.inc()

    def next_timer(self) -> float | None:
        """Return when `handle_timer` has to be called at the latest."""
        return min((each.expires_at for each in self._offers()), default=None)

    def handle_timer(self) -> None:
        """Drop copies that workers have not answered to in time."""
        for each in self._offers():
            if self._state.now >= each.expires_at:
                each.copy = None

    def _offers(self) -> list[Offer]:
        """Return the offers that have a copy."""
        offers = (member.offer for member in self._state.roster)
        return [each for each in offers if each is not None and each.copy is not None]


def _shown(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return shown if len(numbers) <= 8 else f"{shown}, … ({len(numbers)})"
