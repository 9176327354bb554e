"""`Pull`: applies what peers have sent to the parameters, and keeps the replica right.

It belongs to the training half of a worker. While no step may come for long, it lends the replica
to the network thread, which reads it if a restarted master needs it. In a session that leaves, that
thread first applies what has come in.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gradwire.errors import ProtocolError
from gradwire.optimizer.delays import Delays
from gradwire.replica.shared_parameters import SharedParameters
from gradwire.replica.stats import Tally
from gradwire.worker.inbox import Arrivals
from gradwire.worker.membership import Comparison, Membership
from gradwire.worker.sums import Sum
from gradwire.worker.worker import Worker
from gradwire_codecs import NOTHING, CodecError


@dataclass(frozen=True, slots=True)
class PeerUpdate:
    """An update of a peer that `Session.pull` has applied."""

    rank: int
    sequence: int
    elements: int
    """How many parameters it changed."""
    staleness: int
    """Updates of others applied between reading the parameters it was computed on and now."""


class Pull:
    """Applies the updates of peers to the parameters of one worker."""

    def __init__(
        self,
        shared: SharedParameters,
        membership: Membership,
        worker: Worker,
        delays: Delays,
        tally: Tally,
        clock: Callable[[], float],
    ) -> None:
        self._shared = shared
        self._parameters = shared.parameters
        self._feedback = shared.feedback
        self._membership = membership
        self._worker = worker
        self._delays = delays
        self._tally = tally
        self._clock = clock

    def pull(self) -> list[PeerUpdate]:
        """Apply everything in the inbox; return the updates that were not conflated."""
        return self._pull(self._parameters.gather)

    def pull_gathered(self) -> list[PeerUpdate]:
        """Do the same right after a push, when the vector holds the target's values already."""
        return self._pull(lambda: None)

    def _pull(self, gather: Callable[[], None]) -> list[PeerUpdate]:
        membership, shared = self._membership, self._shared
        comparison = membership.comparison
        shared.read_at = membership.updates_received  # what comes from now on is not read
        reached = membership.reached
        arrivals = membership.inbox.take_all()
        if arrivals:
            gather()
        with shared.changing:
            applied = self._apply(arrivals)
            if reached[0] > shared.position:
                shared.note_place(*reached)
        self._give_if_wanted()
        if comparison is not None:
            self._compare(comparison)
        elif membership.lost is None:
            digest = shared.repair.digest(shared.position, shared.accepted)
            if digest is not None:
                self._membership.post(self._worker.tell_digest, digest)
        return applied

    @contextmanager
    def lent(self, *, applies: bool) -> Iterator[None]:
        """Lend the replica inside the block; see `lend`."""
        self.lend(applies=applies)
        try:
            yield
        finally:
            self.take_back()

    def lend(self, *, applies: bool) -> None:
        """Let the network thread give the replica to a master that wants it, from now on.

        The master was told that the replica contains all that has come in.

        Parameters
        ----------
        applies : bool
            Whether the network thread may apply what has come in to the parameters first. Otherwise
            it gives the replica only if nothing has come in, and else the next pull does.
        """
        self._membership.lender = self._apply_and_give if applies else self._give_if_inbox_empty
        self._membership.lender()

    def take_back(self) -> None:
        """Stop lending the replica."""
        self._membership.lender = None

    # Private: a restarted master.

    def _apply_and_give(self) -> None:
        if self._membership.replica_wanted is not None:
            self._parameters.gather()
            with self._shared.changing:
                self._apply(self._membership.inbox.take_all())
            self._give_if_wanted()

    def _give_if_inbox_empty(self) -> None:
        if self._membership.inbox.is_empty:
            self._give_if_wanted()

    def _give_if_wanted(self) -> None:
        """Give a restarted master the replica that it has lost, if it wants it."""
        with self._shared.changing:
            accepted = self._membership.replica_wanted
            if accepted is None:
                return
            self._membership.replica_wanted = None
            values, last = self._shared.repair.values_without(accepted)
        self._membership.post(self._worker.found_again, values.astype("<i4").tobytes(), last)

    # Private: comparing replicas.

    def _compare(self, comparison: Comparison) -> None:
        """Compare our replica with the master's, and ask for the blocks that differ."""
        shared = self._shared
        numbers = shared.repair.compare(
            comparison.blocks, shared.versions, missed=comparison.missed
        )
        if numbers is None:
            return  # updates have to come first
        if self._membership.comparison is comparison:
            self._membership.comparison = None
        self._membership.post(self._worker.want, comparison.blocks, numbers)

    # Private: updates.

    def _apply(self, arrivals: Arrivals) -> list[PeerUpdate]:
        if not arrivals:
            return []
        began = self._clock()
        shared, tally = self._shared, self._tally
        rebase = arrivals.rebase
        if rebase is not None:
            with self._shared.undisturbed():
                shared.repair.mend(rebase)
            if rebase.missed:
                shared.forget_versions()
                shared.note(rebase.blocks.versions)
                accepted = rebase.blocks.versions.get(shared.rank, 0)
                shared.note_place(rebase.blocks.position, accepted)
                shared.forget_result()
        if arrivals.conflated is not None:
            self._feedback.apply_sum(arrivals.conflated)
            shared.note(arrivals.conflated_versions)
            shared.note_place(arrivals.position, arrivals.accepted)
            shared.forget_result()
            shared.repair.note_sum(arrivals.conflated_versions)
            self._delays.note_sum(arrivals.conflated_versions.keys(), arrivals.conflated_count)
            tally.updates_applied += arrivals.conflated_count
            tally.updates_conflated += arrivals.conflated_count
        applied = [self._add(each) for each in arrivals.updates]
        self._parameters.scatter()
        tally.apply_seconds += self._clock() - began
        return [each for each in applied if each is not None]

    def _add(self, total: Sum) -> PeerUpdate | None:
        """Apply entries of the log; return what it was if it was a single update."""
        shared, tally = self._shared, self._tally
        try:
            changes = total.changes(len(self._feedback.replica))
            elements = sum([self._feedback.apply(change) for change in changes])
        except CodecError as error:
            raise self._give_up(error) from None
        shared.repair.note_applied(total, changes)
        staleness = {} if shared.has_rounds else total.staleness(shared.versions)
        self._delays.note_summed(staleness)
        shared.note(total.versions)
        shared.note_place(total.stop, total.accepted)
        tally.updates_applied += total.updates
        if total.origin is None:
            shared.forget_result()
            tally.updates_conflated += total.updates
            return None
        body = total.bodies[0] if total.bodies else NOTHING
        shared.note_result(body, is_end=bool(total.span.closes))
        [(rank, sequence)] = total.span.after.items()
        late, _ = staleness.get(rank, (0, 1))
        return PeerUpdate(rank, sequence, elements, round(late))

    def _give_up(self, error: CodecError) -> ProtocolError:
        useless = ProtocolError(f"the master relayed an update that cannot be applied: {error}")
        self._membership.on_closed(useless)
        self._membership.post(self._worker.abort, "gave up")
        return useless
