"""`Repair`: checks a worker's replica, compares it with the master's, and repairs it.

It belongs to the training half of a worker, as the replica does. Every `DIGEST_SECONDS` it computes
the digest of the replica. If the updates in the replica lead to another digest, the master sends
the digest of every block, at some version vector of its own. The blocks that differ are damaged:
the master sends its own, and the worker adds the difference. In the same way a worker gets a
current replica when it has missed updates that nobody keeps any more.

To know what its replica was at that version vector, the worker subtracts what has come since: own
updates, and the last ones of peers, which it keeps for that. Updates that were conflated before
they were applied cannot be subtracted. The comparison is given up then, and the next digest leads
to another one.
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from gradwire.worker.inbox import Rebase, digests_in
from gradwire.worker.sums import Sum
from gradwire.worker.update_log import ENTRY_BYTES, OwnUpdateLog
from gradwire_codecs import BlockDigests, Feedback, Update, decode, digest_of
from gradwire_codecs.arrays import Int32Array
from gradwire_protocol.limits import MIB
from gradwire_protocol.messages.fields import covers
from gradwire_protocol.messages.layout import Layout
from gradwire_protocol.messages.replicas import Blocks, Digest
from gradwire_protocol.messages.snapshots import block_span

logger = logging.getLogger("gradwire.session")

DIGEST_SECONDS: Final = 5.0
"""How often the digest is computed: damage is found within seconds, and a digest takes 0.2 ms per
million parameters."""

TIME_SHARE_MAX: Final = 0.01
"""Largest part of the time that goes into digests. If one takes long, they become fewer."""

RECENT_BYTES_MAX: Final = 16 * MIB
"""Peers' updates kept to subtract them, with `ENTRY_BYTES` for each: small ones would take several
times their bodies. A comparison needs those of a round trip and a step: for a hundred peers with
20 KB each, 2 MB a step."""

HIT_BYTES: Final = 8
"""Position and count."""

BLOCKS_NAMED_MAX: Final = 8
"""Damaged blocks that a log line names."""


@dataclass(frozen=True, slots=True)
class _Applied:
    """What was applied at once: an update of another worker, or several as a sum."""

    before: Mapping[int, int]
    """By rank, the update before its first one."""
    after: Mapping[int, int]
    """By rank, its last one."""
    change: bytes | Sequence[Update]

    @property
    def nbytes(self) -> int:
        """Memory."""
        if isinstance(self.change, bytes):
            return ENTRY_BYTES + len(self.change)
        return ENTRY_BYTES + sum(HIT_BYTES * each.hits for each in self.change)

    def changes(self, elements: int) -> Sequence[Update]:
        """Return what it has changed."""
        if isinstance(self.change, bytes):
            return [decode(self.change, elements)]
        return self.change


class Repair:
    """Checks and repairs one replica.

    Parameters
    ----------
    versions : mapping
        What the replica contains now.
    own : OwnUpdateLog
        Own updates, at least those that some worker lacks.
    """

    seconds = DIGEST_SECONDS

    def __init__(
        self,
        feedback: Feedback,
        rank: int,
        versions: Mapping[int, int],
        own: OwnUpdateLog,
        layout: Layout,
        *,
        clock: Callable[[], float],
    ) -> None:
        self.repairs = 0
        """How often damaged blocks were repaired."""
        self.blocks_repaired = 0
        self._feedback = feedback
        self._rank = rank
        self._own = own
        self._layout = layout
        self._clock = clock
        self._digested_at = clock()
        self._digest_took = 0.0
        self._recent: deque[_Applied] = deque()
        self._recent_bytes = 0
        self._floor = dict(versions)
        """By rank: the last update of another worker that cannot be subtracted any more."""
        self._compared: tuple[Blocks, dict[int, Int32Array]] | None = None
        """The last comparison, and our differing blocks as they were at its versions."""

    # Applied updates.

    def note_applied(self, total: Sum, changes: Sequence[Update]) -> None:
        """Note that entries of the log were applied; `changes` is what they changed."""
        after = _of_others(total.span.after, self._rank)
        is_single = total.origin is not None and len(total.bodies) == 1
        self._note(_Applied(total.before, after, total.bodies[0] if is_single else changes))

    def _note(self, applied: _Applied) -> None:
        self._recent.append(applied)
        self._recent_bytes += applied.nbytes
        while self._recent_bytes > RECENT_BYTES_MAX:
            oldest = self._recent.popleft()
            self._recent_bytes -= oldest.nbytes
            self._floor |= oldest.after

    def note_sum(self, versions: Mapping[int, int]) -> None:
        """Note that peers' updates up to these versions were applied as a sum."""
        self._floor |= _of_others(versions, self._rank)

    # Digests.

    def digest(self, position: int, accepted: int) -> Digest | None:
        """Return the digest of the replica as it was at a position of the log, if one is due.

        Parameters
        ----------
        position : int
            That up to which the replica has the log.
        accepted : int
            The last own update that the log has up to there; later ones are subtracted.
        """
        began = self._clock()
        if began < self._digested_at + max(self.seconds, self._digest_took / TIME_SHARE_MAX):
            return None
        if not self._own.reaches_back_to(accepted):
            return None
        values = self._feedback.replica.values
        digests = BlockDigests.of(values, len(values))
        for update in self._own.after(accepted):
            digests.subtract(decode(update.body, len(values)))
        self._digested_at = self._clock()
        self._digest_took = self._digested_at - began
        return Digest(position, digests.whole)

    def values_without(self, accepted: int) -> tuple[Int32Array, int]:
        """Return a copy of the replica without own updates after one.

        Returns
        -------
        tuple
            Shape (N,), int32, and the last own update in it: some may not be kept any more.
        """
        values = self._feedback.replica.values.copy()
        later = self._own.after(accepted)
        for update in later:
            change = decode(update.body, len(values))
            values[change.index] -= change.change
        return values, later[0].sequence - 1 if later else accepted

    # Comparison and repair.

    def compare(
        self, blocks: Blocks, versions: Mapping[int, int], *, missed: bool
    ) -> tuple[int, ...] | None:
        """Find the blocks that differ from the master's.

        Parameters
        ----------
        versions : mapping
            What our replica contains.
        missed : bool
            Whether it lacks updates that will never come: then it is compared as it is.

        Returns
        -------
        tuple of int or None
            The numbers of the blocks to ask for. Empty if all are equal, or if their values at the
            master's versions cannot be told any more. None if updates have to come first.
        """
        ours, theirs = _of_others(versions, self._rank), _of_others(blocks.versions, self._rank)
        if not missed and any(ours.get(rank, 0) < theirs[rank] for rank in theirs):
            return None
        accepted = blocks.versions.get(self._rank, 0)
        self._compared = None
        if not self._own.reaches_back_to(accepted) or (
            not missed and any(self._floor[rank] > theirs.get(rank, 0) for rank in self._floor)
        ):
            return ()
        values = self._feedback.replica.values
        since = [decode(update.body, len(values)) for update in self._own.after(accepted)]
        for applied in () if missed else self._recent:
            if covers(theirs, applied.after):
                continue
            if any(theirs.get(rank, 0) > applied.before[rank] for rank in applied.after):
                return ()  # the master's replica has a part of this sum
            since += applied.changes(len(values))
        digests = BlockDigests.of(values, block_span(0, len(values)).stop)
        for update in since:
            digests.subtract(update)
        differing = np.flatnonzero(digests.values != digests_in(blocks))
        copies = {int(number): self._block_without(since, int(number)) for number in differing}
        self._compared = blocks, copies
        if not missed and copies:
            self._log_damage(list(copies))
        return tuple(copies)

    def mend(self, rebase: Rebase) -> None:
        """Replace our blocks by the master's.

        Where updates were missed, parameters change like the replica: the residual stays as it is.
        Where the replica was damaged, parameters stay as they are.
        """
        if self._compared is None or self._compared[0] is not rebase.blocks:
            return  # given up meanwhile
        (blocks, copies), self._compared = self._compared, None
        digests = digests_in(blocks)
        mended = 0
        for number, values in rebase.values.items():
            start = block_span(number, len(self._feedback.replica)).start
            theirs = np.frombuffer(values, "<i4").astype(np.int32, copy=False)
            if rebase.missed:
                self._feedback.apply_sum(theirs - copies[number], start)
            elif digest_of(theirs, start) != int(digests[number]):
                logger.error("block %d of the replica came from the master damaged", number)
            else:
                self._feedback.correct_replica(theirs - copies[number], start)
                mended += 1
        if rebase.missed:
            self._floor = _of_others(blocks.versions, self._rank)
            self._recent.clear()
            self._recent_bytes = 0
        self.repairs += bool(mended)
        self.blocks_repaired += mended

    # Private.

    def _block_without(self, updates: list[Update], number: int) -> Int32Array:
        """Return a copy of a block as it was before these updates."""
        replica = self._feedback.replica
        span = block_span(number, len(replica))
        block = replica.values_at(span).copy()
        for update in updates:
            low, high = np.searchsorted(update.index, [span.start, span.stop])
            place = update.index[low:high].astype(np.intp) - span.start
            block[place] -= update.change[low:high]
        return block

    def _log_damage(self, numbers: list[int]) -> None:
        elements = len(self._feedback.replica)
        places = []
        for number in numbers[:BLOCKS_NAMED_MAX]:
            span = block_span(number, elements)
            first, last = self._layout.locate(span.start), self._layout.locate(span.stop - 1)
            places.append(f"{number} ({first} to {last})")
        more = f" and {len(numbers) - len(places)} more" if len(numbers) > len(places) else ""
        logger.warning(
            "the shared parameters in this process are not what the updates lead to: its memory "
            "was damaged. They are fetched again from the master: blocks %s%s",
            ", ".join(places),
            more,
        )


def _of_others(versions: Mapping[int, int], rank: int) -> dict[int, int]:
    return {each: sequence for each, sequence in versions.items() if each != rank}
