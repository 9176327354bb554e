"""`Sharing`: a worker's part in the shared parameters, what it sends of them and applies to them.

It belongs to the training thread, and so do the parameters: they change in `push`, `pull`,
`flush_on`, `settle` and `restore`, and at no other time but one. While no step may come for long,
it is lent to the network thread, which then reads the replica where a master needs it; in a session
that leaves, that thread first applies what has come in.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Lock
from time import perf_counter
from typing import Any, Final

import numpy as np

from gradwire.errors import ProtocolError, UsageError
from gradwire.flush import Flush
from gradwire.inbox import Arrivals
from gradwire.kept import Kept, OwnUpdate
from gradwire.membership import Comparison, Membership
from gradwire.mending import Mending
from gradwire.named_errors import named_errors
from gradwire.network import NetworkThread
from gradwire.parameters import Parameters
from gradwire.process_end import uninterrupted
from gradwire.settings import Settings
from gradwire.stats import Tally
from gradwire.thresholds import Thresholds
from gradwire.worker import Worker
from gradwire_codecs import (
    CodecError,
    Feedback,
    check_finite,
    clip_residual,
    encoded_hits,
)
from gradwire_codecs.arrays import describe
from gradwire_protocol.limits import MIB
from gradwire_protocol.messages import UPDATE_BYTES_MAX, EncodedUpdate, total

OUTBOX_BYTES_MAX: Final = 8 * MIB
OUTBOX_UPDATES_MAX: Final = 64
"""Own updates that the master does not have yet. Beyond either bound a step sends nothing: its
change waits in the residual, where it costs no memory, and goes out with a later step."""

INT32_MAX: Final = 2**31 - 1

STATE_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class PeerUpdate:
    """An update of a peer that `Session.pull` has applied."""

    rank: int
    sequence: int
    elements: int
    """How many parameters it changed."""
    staleness: int
    """Updates of others applied between reading the parameters it was computed on and now."""


class Sharing:
    """What one worker sends and applies.

    Parameters
    ----------
    settings : Settings
    parameters : Parameters
    feedback : Feedback
        Over the vector of `parameters`, with a replica that contains what the master's WELCOME
        says.
    membership : Membership
        Whose inbox is emptied.
    network : NetworkThread
        Which encoded updates are given to.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        parameters: Parameters,
        feedback: Feedback,
        membership: Membership,
        network: NetworkThread[Worker],
    ) -> None:
        assert membership.welcome is not None
        self._settings = settings
        self._parameters = parameters
        self._feedback = feedback
        self._membership = membership
        self._network = network
        self._welcome = membership.welcome
        self.thresholds = Thresholds(settings, feedback, self._welcome.layout, clock=perf_counter)
        self._versions = {**self._welcome.versions, self._rank: self._welcome.sequence}
        self._flush = Flush(0, 1)
        self._kept = Kept()
        self._changing = Lock()
        """Held while the replica changes, or is read by another thread."""
        self.mending = Mending(
            feedback,
            self._rank,
            self._versions,
            self._kept,
            self._welcome.layout,
            seconds=settings.digest_seconds,
            clock=perf_counter,
        )
        self._reconnections = 0
        """Those that are known."""
        self.tally = Tally()
        self._named_errors = partial(named_errors, self._welcome.layout, self.quantum)

    @property
    def quantum(self) -> float:
        """Resolution of the shared parameters."""
        return float(self._feedback.replica.quantum)

    @property
    def versions(self) -> Mapping[int, int]:
        """What the parameters contain, own updates included."""
        return self._versions

    def digest(self) -> int:
        """Return 64 bits that are the same for all workers with the same updates applied."""
        return self._feedback.replica.digest()

    # Sending.

    @uninterrupted()
    def push(self, change: Any = None) -> int:
        """Add a change to the parameters, if one is given, and send what reaches the threshold.

        Returns how many elements that changes. Where it raises, nothing was changed or sent.
        """
        self._parameters.gather()
        if change is None:
            elements = self._send()
        else:
            try:
                with self._feedback.undoing():
                    self._add(change)
                    elements = self._send()
            except UsageError:
                self._parameters.scatter()
                raise
        self._scatter_sent()
        return elements

    @uninterrupted()
    def flush(self) -> None:
        """Begin to send the whole residual; `flush_on` does it, range by range."""
        self._parameters.gather()
        with self._named_errors():
            self._feedback.check()
        self._flush = Flush(len(self._feedback.replica), len(self._membership.peers))

    @uninterrupted()
    def flush_on(self) -> bool:
        """Send of the residual as much as the others keep up with; return whether that is all.

        What is not sent yet stays in the residual, where a checkpoint finds it.
        """
        while self.may_flush_on():
            start, stop = self._flush.range
            with self._membership.sending() as may_send, self._changing:
                if not may_send:
                    break
                with self._named_errors():
                    bodies = self._feedback.encode(
                        1,
                        magnitude_max=INT32_MAX,
                        bytes_max=UPDATE_BYTES_MAX,
                        start=start,
                        stop=stop,
                    )
                self._hand_over(bodies)
            self._flush.note_sent(stop, self._versions[self._rank], sum(map(len, bodies)))
        self._scatter_sent()
        return not self._flush.left

    def may_flush_on(self) -> bool:
        """Return whether the slowest worker has taken enough of the residual for more of it."""
        membership = self._membership
        return (
            membership.lost is None
            and membership.stopping is None
            and self._flush.may_go_on(membership.stable.get(self._rank, 0))
        )

    @property
    def unflushed(self) -> int:
        """How many elements were not looked at yet since `flush`."""
        return self._flush.left

    # Applying.

    @uninterrupted()
    def pull(self) -> list[PeerUpdate]:
        """Apply everything in the inbox; return what was not conflated of it."""
        self._parameters.gather()
        return self.pull_gathered()

    @uninterrupted()
    def pull_gathered(self) -> list[PeerUpdate]:
        """Do the same right after a `push`, when the vector is what the target holds."""
        membership = self._membership
        comparison = membership.comparison
        if membership.reconnections != self._reconnections:
            self._reconnections = membership.reconnections
            self.mending.note_reconnection()
        arrivals = membership.inbox.take()
        with self._changing:
            applied = self._apply(arrivals)
        self._give_if_wanted()
        if comparison is not None:
            self._compare(comparison)
        elif membership.lost is None:
            digest = self.mending.digest(self._versions)
            if digest is not None:
                self._network.call(self._network.worker.tell_digest, digest)
        return applied

    def _compare(self, comparison: Comparison) -> None:
        """Compare our replica with the master's, and ask for what differs."""
        numbers = self.mending.compare(comparison.blocks, self._versions, missed=comparison.missed)
        if numbers is None:
            return  # updates have to come first
        if self._membership.comparison is comparison:
            self._membership.comparison = None
        self._network.call(self._network.worker.want, comparison.blocks, numbers)

    @contextmanager
    def lent(self, *, applies: bool) -> Iterator[None]:
        """Let the network thread give the replica away inside the block, if a master wants it.

        The master was told that the replica contains all that has come in.

        Parameters
        ----------
        applies : bool
            Whether what has come in may be applied to the parameters for that. Otherwise the
            replica is given only if nothing has; who was asked for it then gives it later.
        """
        give = self._apply_and_give if applies else self._give_if_whole
        self._membership.lender = give
        try:
            give()
            yield
        finally:
            self._membership.lender = None

    @uninterrupted()
    def _apply_and_give(self) -> None:
        if self._membership.wanted:
            self._parameters.gather()
            with self._changing:
                self._apply(self._membership.inbox.take())
            self._give_if_wanted()

    def _give_if_whole(self) -> None:
        if self._membership.inbox.is_empty:
            self._give_if_wanted()

    @uninterrupted()
    def _give_if_wanted(self) -> None:
        """Give a master that was started anew what it has lost."""
        with self._changing:
            if not self._membership.wanted:
                return
            self._membership.wanted = False
            values = self._feedback.replica.values.astype("<i4").tobytes()
            versions = dict(self._versions)
        self._network.call(self._network.worker.found_again, values, versions)

    def _apply(self, arrivals: Arrivals) -> list[PeerUpdate]:
        if not arrivals.updates and arrivals.conflated is None and arrivals.rebase is None:
            return []
        began = perf_counter()
        tally = self.tally
        rebase = arrivals.rebase
        if rebase is not None:
            self.mending.mend(rebase)
            if rebase.missed:
                own = {self._rank: self._versions[self._rank]}
                self._versions = {**rebase.blocks.versions, **own}
        if arrivals.conflated is not None:
            self._feedback.apply_sum(arrivals.conflated)
            self._versions |= arrivals.conflated_versions
            self.mending.note_sum(arrivals.conflated_versions)
            tally.updates_applied += arrivals.conflated_count
            tally.updates_conflated += arrivals.conflated_count
        applied = []
        for rank, update in arrivals.updates:
            elements = self._add_update(update)
            if rank is None:
                self.mending.note_correction(update)
                continue  # the version vector has the update it belongs to
            self.mending.note(rank, update)
            staleness = total(self._versions, without=rank) - update.based_on
            self._versions[rank] = update.sequence
            tally.staleness.append(staleness)
            applied.append(PeerUpdate(rank, update.sequence, elements, staleness))
        tally.updates_applied += len(applied)
        self._parameters.scatter()
        tally.apply_seconds += perf_counter() - began
        return applied

    @uninterrupted()
    def settle(self) -> None:
        """Set the parameters to the shared ones; what was not sent is dropped."""
        self._feedback.settle()
        self._parameters.scatter()

    def close(self) -> None:
        """End the codec's threads."""
        self._feedback.close()

    # What goes into a checkpoint.

    @uninterrupted()
    def state(self) -> dict[str, Any]:
        """Return residual, threshold policy and versions."""
        self._parameters.gather()
        return {
            "version": STATE_VERSION,
            "run": self._welcome.run,
            "residual": self._parameters.like_target(self._feedback.residual()),
            **self.thresholds.state(),
            "versions": dict(self._versions),
        }

    @uninterrupted()
    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over residual and threshold policy, or raise `UsageError` and change nothing."""
        version = state.get("version")
        if not isinstance(version, int) or version != STATE_VERSION:  # of an array, != is an array
            raise UsageError(f"state of version {version!r}; this gradwire reads {STATE_VERSION}")
        try:
            residual = np.asarray(state["residual"])
            self._feedback.check_residual(residual)
            self.thresholds.restore(state)
            self._parameters.gather()
            self._feedback.restore_residual(residual)
        except KeyError as error:
            raise UsageError(f"the saved state has no {error}") from None
        except (TypeError, ValueError, RuntimeError) as error:
            raise UsageError(f"the saved state does not fit: {error}") from None
        self._parameters.scatter()

    # Private.

    @property
    def _rank(self) -> int:
        return self._welcome.rank

    def _send(self) -> int:
        """Send what is due, if anything may be sent; return how many elements that changes."""
        self.tally.steps += 1
        with self._membership.sending() as may_send:
            if may_send and not self._is_behind():
                return self._encode()
        self.tally.steps_deferred += 1
        with self._named_errors():
            self._feedback.check_finite()
            self._feedback.absorb()
        return 0

    def _encode(self) -> int:
        """Encode what has reached the threshold; return how many elements that changes."""
        began = perf_counter()
        tally, thresholds = self.tally, self.thresholds
        with self._named_errors():
            threshold = thresholds.next()
            if threshold is None:
                return 0
        with self._changing:
            with self._named_errors():
                bodies = self._feedback.encode(threshold, bytes_max=UPDATE_BYTES_MAX)
            sent = self._hand_over(bodies)
        tally.density = thresholds.observe(sent=sent, size_bytes=sum(map(len, bodies)))
        tally.threshold = thresholds.last * self.quantum
        self._clip()
        thresholds.note_kept()
        tally.encode_seconds += perf_counter() - began
        return sent

    def _clip(self) -> None:
        """Cut off of the residual what is too large, if that is wanted, and due; count it."""
        times, ordinary = self._settings.residual_clip, self.thresholds.ordinary
        if times is None or ordinary is None or self.tally.steps % self._settings.clip_steps:
            return
        clipped = clip_residual(self._feedback, ordinary, times)
        self.tally.elements_clipped += clipped.elements
        self.tally.magnitude_clipped += clipped.magnitude
        if clipped.elements:
            self._parameters.scatter()

    def _scatter_sent(self) -> None:
        """Bring what encoding has changed into the target, where it changes anything."""
        if self._feedback.moves_parameters:
            self._parameters.scatter()

    def _hand_over(self, bodies: list[bytes]) -> int:
        """Give encoded updates to the network thread; return how many elements they change."""
        if not bodies:
            return 0
        based_on = total(self._versions, without=self._rank)
        self._network.call(self._network.worker.push, bodies, based_on)
        elements = sum(map(encoded_hits, bodies))
        if self._membership.comparison is None:
            self.mending.forget(self._membership.stable.get(self._rank, 0))
        for body in bodies:
            self._versions[self._rank] += 1
            self._kept.put(OwnUpdate(self._versions[self._rank], based_on, body))
        self.tally.updates_sent += len(bodies)
        self.tally.elements_sent += elements
        self.tally.bytes_encoded += sum(map(len, bodies))
        return elements

    def _is_behind(self) -> bool:
        """Return whether the network has enough to do with what it was given."""
        tally, membership = self.tally, self._membership
        return (
            membership.lost is not None
            or tally.bytes_encoded - membership.bytes_delivered > OUTBOX_BYTES_MAX
            or tally.updates_sent - membership.updates_delivered > OUTBOX_UPDATES_MAX
        )

    def _add(self, change: Any) -> None:
        try:
            array = self._parameters.to_array(change)
        except (TypeError, ValueError, RuntimeError):
            array = np.asarray(None)  # nothing that numpy reads
        size = len(self._feedback.replica)
        if array.dtype != np.float32 or array.size != size:
            raise UsageError(
                f"a change has to be float32 with {size} elements, not {describe(array)}"
            )
        flat = array.reshape(-1)
        with self._named_errors():
            check_finite(flat)
        self._feedback.add_change(flat)
        self._parameters.scatter()

    def _add_update(self, update: EncodedUpdate) -> int:
        try:
            return self._feedback.apply(update.body)
        except CodecError as error:
            useless = ProtocolError(f"the master relayed an update of no use: {error}")
            self._membership.on_closed(useless)
            self._network.call(self._network.worker.abort, "gave up")
            raise useless from None
