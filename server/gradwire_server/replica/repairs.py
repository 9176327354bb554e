"""Repairs: a worker's replica is checked by its digest, and mended block by block.

::

    worker                             master
    DIGEST, every some seconds  ──▶    is it what the updates in it lead to? if not,
    which blocks differ?        ◀──    BLOCKS: the digests of all, and a copy is made
    WANT                        ──▶
    put in the place of ours    ◀──    these blocks of the copy

The same makes the replica of a worker current that is back after its updates are not kept any more.

A copy takes as much memory as the replica. It is shared by all who need one of the same moment, and
kept until the worker has answered and has what it wanted, for some minutes at the most.
"""

import logging
from typing import Final

from gradwire_protocol import InvalidMessageError
from gradwire_protocol.messages.fields import covers
from gradwire_protocol.messages.replicas import Digest, Want
from gradwire_protocol.messages.snapshots import SnapshotFeed
from gradwire_server.state.replica_copy import ReplicaCopy
from gradwire_server.state.roster import Member, Offer, Phase
from gradwire_server.state.run import Run
from gradwire_server.state.state import State

logger = logging.getLogger("gradwire.master")

PAUSE_SECONDS: Final = 10.0
"""Between two repairs of one worker: who says nonsense does not keep the master busy."""

OFFER_PASSES_MAX: Final = 10
"""Passes of the self-check, of a minute each, that a copy is kept for a worker that does not
answer. Its training thread does, so it takes a step; who answers later is offered another one."""


def offer(member: Member, copy: ReplicaCopy) -> None:
    """Let a worker compare its replica with a copy of ours."""
    member.offer = Offer(copy)
    member.link.send(copy.blocks)


class Repairs:
    """Checks and mends replicas of workers."""

    def __init__(self, state: State) -> None:
        self._state = state

    def receive(self, member: Member, message: Digest | Want) -> None:
        """Take what a worker says of its replica, or asks for of ours.

        Raises
        ------
        InvalidMessageError
            If it asks for what it was not offered.
        """
        if isinstance(message, Digest):
            self.take_digest(member, message)
        else:
            self.take_want(member, message)

    def take_digest(self, member: Member, digest: Digest) -> None:
        """Take what a worker says of its replica."""
        member.claim = digest
        self.look_at(member)

    def look_at(self, member: Member) -> None:
        """Check what a worker has said, if all updates in it are accepted by now."""
        run, claim = self._state.run, member.claim
        if run is None or run.digests is None or claim is None:
            return
        busy = member.offer is not None or member.feed is not None
        if member.phase is not Phase.LIVE or busy or not covers(run.relay.versions, claim.versions):
            return
        member.claim = None
        if not _has_all_corrections(member, claim, run):
            return
        expected = run.digests.at(claim.versions)
        if expected is None:
            return
        metrics = self._state.metrics
        metrics.digest_checks.inc()
        if claim.digest == expected:
            return
        metrics.digest_mismatches.inc()
        logger.warning(
            "the replica of %s is not what its updates lead to: its memory was damaged, or it has "
            "an error; it compares the blocks with ours",
            member.name,
        )
        now = self._state.now
        if member.repaired_at is None or now >= member.repaired_at + PAUSE_SECONDS:
            member.repaired_at = now
            offer(member, run.copy())
            self._state.queues_grew = True

    def take_want(self, member: Member, want: Want) -> None:
        """Send a worker the blocks that it lacks.

        Raises
        ------
        InvalidMessageError
            If it was not offered any, or there are none such.
        """
        if member.offer is None:
            raise InvalidMessageError(f"Want from {member.name}, to whom nothing was offered")
        copy, member.offer = member.offer.copy, None
        if copy is None:
            assert self._state.run is not None
            offer(member, self._state.run.copy())
            return
        numbers = sorted(set(want.blocks))
        if numbers and numbers[-1] >= len(copy):
            raise InvalidMessageError(f"{member.name} wants block {numbers[-1]} of {len(copy)}")
        if member.phase is Phase.LIVE and numbers:
            logger.warning("%s gets blocks %s anew", member.name, _shown(numbers))
            self._state.metrics.blocks_repaired.inc(len(numbers))
        elif numbers:
            logger.info("%s gets %d of %d blocks", member.name, len(numbers), len(copy))
        if numbers:
            member.feed = SnapshotFeed(copy.block, numbers, member.link)
            self._state.queues_grew = True
        else:
            self.fed(member)

    def fed(self, member: Member) -> None:
        """Note that a worker has all that it was to be sent of the replica."""
        member.feed = None
        if member.phase is Phase.SYNCING:
            member.move_to(Phase.LIVE)
            self._state.metrics.snapshots_sent.inc()

    def forget_old(self) -> None:
        """Forget copies that nobody has answered to; to be called once a minute."""
        for member in self._state.roster:
            if member.offer is not None:
                member.offer.passes += 1
                if member.offer.passes > OFFER_PASSES_MAX:
                    member.offer.copy = None


def _has_all_corrections(member: Member, claim: Digest, run: Run) -> bool:
    """Return whether a replica has all that was clipped off the updates in it, and no more."""
    if not member.corrections and not claim.corrections:
        return True
    sent = claim.versions.get(member.rank, 0) == run.relay.versions.get(member.rank, 0)
    return sent and member.corrections == claim.corrections


def _shown(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return shown if len(numbers) <= 8 else f"{shown}, … ({len(numbers)})"
