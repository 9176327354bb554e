"""The intake: the way of an update from a worker into the run, and what keeps it out.

::

    take ──▶ in order ──▶ pace ──▶ decode ──▶ fits? ──▶ in proportion? ──▶ accept ──▶ relay
                           │                    │             │
                         waits               expelled    aside, or clipped

An update is put in the order of its origin, let through at the rate that one worker may have,
decoded, and compared with what the others send (see `vetting`). What waits and what is kept aside
holds its sender's credit: flow control slows the worker down, and memory is bounded by twice the
window of each worker, the message and its body. It is kept encoded, because decoding may make 64
bytes of one.

A worker in quarantine is still sent what the others do, and it can be released at any time: then
everything kept aside is accepted in order, as if the network had been slow.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

from gradwire_codecs import MalformedUpdateError, Update
from gradwire_protocol import CloseCode, InvalidMessageError
from gradwire_protocol.messages.fields import count_updates
from gradwire_protocol.messages.kinds import EndCode
from gradwire_protocol.messages.link import UpdateReceived
from gradwire_server.config import MasterConfig
from gradwire_server.metrics import ServerMetrics
from gradwire_server.state.roster import Member, Phase, Roster
from gradwire_server.state.run import Run
from gradwire_server.updates.clipping import clip
from gradwire_server.updates.decoding import Decoded, Decoder
from gradwire_server.updates.vetting import is_sample, norm_of, reference_of

logger = logging.getLogger("gradwire.master")


@dataclass(frozen=True, slots=True)
class Consequences:
    """What the master does about an update, as functions of the worker that it is from."""

    on_accepted: Callable[[Member], None]
    """It is in the replica and on its way to the others."""
    on_aside: Callable[[Member], None]
    """It is kept aside: the worker is in quarantine."""
    on_fault: Callable[[Member, int, str], None]
    """The connection has to be closed with this code and for this reason."""


class Intake:
    """Takes the updates of all workers."""

    def __init__(
        self,
        config: MasterConfig,
        metrics: ServerMetrics,
        decoder: Decoder,
        roster: Roster,
        consequences: Consequences,
    ) -> None:
        self._config = config
        self._metrics = metrics
        self._decoder = decoder
        self._roster = roster
        self._consequences = consequences
        self._paced: dict[Member, Run] = {}
        """Members of whom something waits for its time."""
        self._now = 0.0

    # Input.

    def accept_update(self, run: Run, member: Member, received: UpdateReceived, now: float) -> None:
        """Take in an update as it came.

        Raises
        ------
        InvalidMessageError
            If the worker must not send it.
        """
        self._now = now
        if received.rank != member.rank:
            raise InvalidMessageError(f"{member.name} sent an update of rank {received.rank}")
        if member.phase not in (Phase.SYNCING, Phase.LIVE):
            raise InvalidMessageError(f"{member.name} sent an update before it had the parameters")
        sequence = received.update.sequence
        if member.last_sequence is not None:
            _check_last(member, sequence, member.last_sequence)
        if member.updates.is_duplicate(sequence):
            member.link.connection.release(received.charge)
            self._metrics.updates_duplicate.inc()
            return
        ready = member.updates.insert(sequence, received)
        if ready and member.last_sequence is not None:
            # What waited for this one may be behind the last one, of which was heard only then.
            _check_last(member, ready[-1].update.sequence, member.last_sequence)
        for each in ready:
            member.pace.push(each)
        self._let_through(run, member)
        # Those that wait are the last ones, so what came now is among them as far as it fits.
        self._metrics.updates_delayed.inc(min(len(ready), len(member.pace)))

    def take_last(self, member: Member, sequence: int, *, leaves: bool = False) -> None:
        """Note which update is a worker's last one.

        The run may be finished with it, so that nothing behind it must come in any more. And
        everyone is told, so that it is said once: to finish, and once more to leave.

        Parameters
        ----------
        sequence : int
            Of that update.
        leaves : bool
            Whether the worker goes when it is here.

        Raises
        ------
        InvalidMessageError
            If that cannot be, or was said before.
        """
        taken = member.updates.expected - 1
        if sequence < taken:
            raise InvalidMessageError(
                f"{member.name} calls update {sequence} its last one, and has sent {taken}"
            )
        if member.leaving is not None or (member.last_sequence is not None and not leaves):
            raise InvalidMessageError(f"{member.name} has said before which update is its last one")
        member.last_sequence = sequence

    def handle_timer(self, now: float) -> None:
        """Let through what has waited for its time."""
        self._now = now
        for member, run in list(self._paced.items()):
            self._let_through(run, member)

    def release(self, run: Run, member: Member, now: float) -> None:
        """End a quarantine: accept what was kept aside, in order, and all that comes.

        The decoder must not hold anything of that worker: it comes after what is aside, and before
        what waits.
        """
        self._now = now
        kept, member.aside = member.aside or [], None
        member.vouched = True
        self._count_quarantined()
        logger.warning("%s is released from quarantine with %d updates", member.name, len(kept))
        member.pace.push_front(kept)
        self._let_through(run, member)

    def hurry(self, member: Member) -> None:
        """Let through all that waits of a worker that is lost: it was acknowledged."""
        run = self._paced.pop(member, None)
        if run is not None:
            self._decode(run, member, member.pace.pop_all())

    def forget(self, member: Member) -> None:
        """Drop what is kept of a worker that is gone."""
        dropped = member.pace.clear() + len(member.aside or ())
        self._metrics.updates_discarded.inc(dropped)
        self._paced.pop(member, None)
        self._count_quarantined()

    # Output.

    def next_timer(self) -> float | None:
        """Return when `handle_timer` has to be called at the latest."""
        times = (member.pace.next_at for member in self._paced)
        return min((time for time in times if time is not None), default=None)

    # Private.

    def _let_through(self, run: Run, member: Member) -> None:
        """Decode what may pass now."""
        self._decode(run, member, iter(lambda: member.pace.pop(self._now), None))
        if len(member.pace):
            self._paced[member] = run
        else:
            self._paced.pop(member, None)

    def _decode(self, run: Run, member: Member, updates: Iterable[UpdateReceived]) -> None:
        for received in updates:
            self._decoder.decode(
                member.rank,
                received.update.body,
                run.layout.elements,
                partial(self._take_decoded, run, member, received),
            )

    def _take_decoded(
        self, run: Run, member: Member, received: UpdateReceived, decoded: Decoded
    ) -> None:
        """Accept an update that was found to be one, or end the connection it came from."""
        connection, sequence = member.link.connection, received.update.sequence
        aside = member.aside
        if self._roster.of(connection) is not member or (
            sequence != run.relay.next_of(member.rank) + len(aside or ())
        ):
            connection.release(received.charge)  # an earlier one was not fit for the run
            return
        try:
            if isinstance(decoded, MalformedUpdateError):
                raise decoded
            staleness = _staleness(run, member, received)
            if aside is None and not self._vet(run, member, received, decoded, staleness):
                aside = member.aside = []
                self._count_quarantined()
        except MalformedUpdateError as error:
            connection.release(received.charge)
            self._metrics.updates_malformed.inc()
            self._consequences.on_fault(member, EndCode.MALFORMED_UPDATE, str(error))
            return
        except InvalidMessageError as error:
            connection.release(received.charge)
            self._metrics.messages_invalid.inc()
            self._consequences.on_fault(member, CloseCode.INVALID_MESSAGE, str(error))
            return
        if aside is None:
            connection.release(received.charge)
            self._consequences.on_accepted(member)
        else:
            aside.append(received)
            self._metrics.updates_quarantined.inc()
            self._consequences.on_aside(member)

    def _vet(
        self, run: Run, member: Member, received: UpdateReceived, update: Update, staleness: int
    ) -> bool:
        """Accept an update as it is, or what is left of it, or return False: not at all."""
        config = self._config
        if config.outlier_policy == "off" or member.vouched:
            self._accept(run, member, received, update, staleness)
            return True
        norm = norm_of(update)
        reference = reference_of(m.norms for m in self._others(member) if m.aside is None)
        limit = config.outlier_norm_multiple * reference if reference is not None else norm
        if norm > limit:
            if config.outlier_policy == "quarantine":
                _say_outlier("kept aside", member, received, norm, limit)
                return False
            self._accept_clipped(run, member, received, update, staleness, limit / norm)
            if not member.clipped:
                member.clipped = True
                _say_outlier("clipped", member, received, norm, limit)
        else:
            self._accept(run, member, received, update, staleness)
        if is_sample(update):
            member.norms.note(min(norm, limit))
        return True

    def _accept(
        self, run: Run, member: Member, received: UpdateReceived, update: Update, staleness: int
    ) -> None:
        """Add an update to the replica and pass it on."""
        run.apply_update(member.rank, update)
        run.relay.accept(
            member.rank,
            received.update.sequence,
            received.message,
            update,
            self._destinations(member),
            self._now,
            clock=received.update.clock,
        )
        self._count_accepted(update, len(received.update.body), staleness)

    def _accept_clipped(
        self,
        run: Run,
        member: Member,
        received: UpdateReceived,
        update: Update,
        staleness: int,
        share: float,
    ) -> None:
        """Add what is left of an update to the replica, pass it on, and tell its origin."""
        clipped = clip(update, share)
        run.apply_update(member.rank, clipped.update)
        member.corrections += 1
        run.relay.accept_clipped(
            member,
            replace(received.update, body=clipped.body),
            clipped.update,
            replace(received.update, body=clipped.correction),
            self._destinations(member),
            self._now,
        )
        self._metrics.updates_clipped.inc()
        self._count_accepted(clipped.update, len(clipped.body), staleness)

    def _others(self, member: Member) -> list[Member]:
        return [other for other in self._roster if other is not member]

    def _destinations(self, member: Member) -> list[Member]:
        return [m for m in self._others(member) if m.phase in (Phase.SYNCING, Phase.LIVE)]

    def _count_accepted(self, update: Update, size: int, staleness: int) -> None:
        metrics = self._metrics
        metrics.updates_accepted.inc()
        metrics.update_bytes.observe(size)
        metrics.update_density.observe(len(update.index) / update.length)
        metrics.update_staleness.observe(staleness)

    def _count_quarantined(self) -> None:
        count = sum(member.aside is not None for member in self._roster)
        self._metrics.quarantined_workers.set(count)


def _check_last(member: Member, sequence: int, last: int) -> None:
    if sequence > last:
        raise InvalidMessageError(
            f"{member.name} sent update {sequence} after its last one, {last}"
        )


def _staleness(run: Run, member: Member, received: UpdateReceived) -> int:
    """Return how many updates of others an update does not know of."""
    update = received.update
    accepted = count_updates(run.relay.versions, without=member.rank)
    if update.based_on > accepted and not run.recovered:
        raise InvalidMessageError(
            f"update {update.sequence} of {member.name} is based on {update.based_on} "
            f"updates of others; {accepted} were accepted"
        )
    return max(accepted - update.based_on, 0)


def _say_outlier(
    fate: str, member: Member, received: UpdateReceived, norm: float, limit: float
) -> None:
    """Tell the operator, once for each worker: the metrics count."""
    logger.warning(
        "update %d of %s is %s: its norm is %.3g quanta, and the limit, a multiple of the others', "
        "%.3g; later ones are counted, not logged",
        received.update.sequence,
        member.name,
        fate,
        norm,
        limit,
    )
