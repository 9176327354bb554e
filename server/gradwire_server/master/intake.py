"""The intake: the steps of an update from a worker into the run.

::

    receive ──▶ in order ──▶ pace ──▶ decode ──▶ fits? ──▶ in proportion? ──▶ accept ──▶ relay
                              │                    │             │
                            waits               expelled    quarantined, if asked for

An update is put in the order of its origin, released at the rate that one worker may have, decoded,
and compared with those of the others (see `vetting`). Updates that wait or are in quarantine hold
their sender's credit: flow control slows the worker down, and memory is bounded by twice the window
of each worker, the message and its body. They are kept encoded, because decoding may turn one byte
into 64.

A worker in quarantine is still sent the updates of the others, and an operator can release it at
any time: then the updates kept aside are accepted in order, as if the network had been slow.
"""

import logging
from collections.abc import Callable, Iterable
from functools import partial

from gradwire_codecs import MalformedUpdateError, Update
from gradwire_protocol import CloseCode, InvalidMessageError
from gradwire_protocol.connection.timers import earliest
from gradwire_protocol.messages.fields import count_updates
from gradwire_protocol.messages.kinds import EndCode
from gradwire_protocol.messages.link import UpdateReceived
from gradwire_protocol.messages.updates import Aside
from gradwire_server.config import MasterConfig
from gradwire_server.master.departures import Departures
from gradwire_server.master.rounds import RoundKeeper
from gradwire_server.metrics import Departure, RunMetrics
from gradwire_server.series.journal import Happening
from gradwire_server.state.roster import Member, Phase, Roster
from gradwire_server.state.run import DivergedUpdateError, Run
from gradwire_server.updates.decoding import Decoded, Decoder
from gradwire_server.updates.vetting import WORKERS_MIN, is_sample, norm_of, reference_of

logger = logging.getLogger("gradwire.master")


class Intake:
    """Accepts the updates of all workers.

    It calls `on_accepted` with the worker when an update is in the replica and queued for the
    others.
    """

    def __init__(
        self,
        config: MasterConfig,
        metrics: RunMetrics,
        decoder: Decoder,
        roster: Roster,
        departures: Departures,
        rounds: RoundKeeper,
        on_accepted: Callable[[Member], None],
    ) -> None:
        self._config = config
        self._metrics = metrics
        self._decoder = decoder
        self._roster = roster
        self._departures = departures
        self._rounds = rounds
        self._on_accepted = on_accepted
        self._paced: dict[Member, Run] = {}
        """Members with updates that wait for their rate."""
        self._now = 0.0

    # Input.

    def accept_update(self, run: Run, member: Member, received: UpdateReceived, now: float) -> None:
        """Handle an update that was received.

        Raises `InvalidMessageError` if the worker must not send it.
        """
        self._now = now
        if received.rank != member.rank:
            raise InvalidMessageError(f"{member.name} sent an update of rank {received.rank}")
        if member.phase not in (Phase.SYNCING, Phase.LIVE):
            raise InvalidMessageError(f"{member.name} sent an update before it had the parameters")
        sequence = received.update.sequence
        if run.rounds is not None:
            run.rounds.check(member.rank, received.update)
        elif received.update.closes:
            raise InvalidMessageError(f"{member.name} contributes to a round, and there are none")
        if member.last_sequence is not None:
            _check_last(member, sequence, member.last_sequence)
        if member.updates.is_duplicate(sequence):
            member.link.connection.release(received.charge)
            self._metrics.updates_duplicate.inc()
            return
        ready = member.updates.insert(sequence, received)
        if ready and member.last_sequence is not None:
            # Updates that have waited for this one may come after the announced last one.
            _check_last(member, ready[-1].update.sequence, member.last_sequence)
        for each in ready:
            member.pace.push(each)
        self._decode_due(run, member)
        # Those that wait are the newest, so of the new ones at most as many wait.
        self._metrics.updates_delayed.inc(min(len(ready), len(member.pace)))

    def set_last_sequence(self, member: Member, sequence: int, *, leaves: bool = False) -> None:
        """Note which update a worker calls its last one.

        The run may finish with that update, so no later one is accepted. All members are told, so a
        worker may say it only once in FINISH, and once more in LEAVE (`leaves`).

        Raises `InvalidMessageError` if the worker has sent a later update, or has said this before.
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
        """Decode updates that have waited for their rate."""
        self._now = now
        for member, run in list(self._paced.items()):
            self._decode_due(run, member)

    def release(self, run: Run, member: Member, now: float) -> None:
        """End a quarantine: accept the updates kept aside, in order, and all later ones.

        The caller has drained the decoder for that worker, because updates in it come after those
        kept aside and before those that wait.
        """
        self._now = now
        kept, member.quarantine = member.quarantine or [], None
        member.trusted = True
        self._count_quarantined()
        text = f"{member.name} is released from quarantine with {len(kept)} updates"
        self._note(Happening.RELEASED, run, member, text)
        member.pace.push_front(kept)
        self._decode_due(run, member)

    def flush(self, member: Member) -> None:
        """Decode all waiting updates of a worker that was lost: they were acknowledged."""
        run = self._paced.pop(member, None)
        if run is not None:
            self._decode(run, member, member.pace.pop_all())

    def forget(self, member: Member) -> None:
        """Drop the waiting updates of a worker that was removed."""
        dropped = member.pace.clear() + len(member.quarantine or ())
        self._metrics.updates_discarded.inc(dropped)
        self._paced.pop(member, None)
        self._count_quarantined()

    # Output.

    def next_timer(self) -> float | None:
        """Return when `handle_timer` has to be called at the latest."""
        return earliest([member.pace.next_at for member in self._paced])

    # Private.

    def _decode_due(self, run: Run, member: Member) -> None:
        """Decode the updates whose turn has come."""
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
                partial(self._handle_decoded, run, member, received),
            )

    def _handle_decoded(
        self, run: Run, member: Member, received: UpdateReceived, decoded: Decoded
    ) -> None:
        """Accept a decoded update, keep it aside, or report a fault."""
        connection, sequence = member.link.connection, received.update.sequence
        quarantine = member.quarantine
        if self._roster.of(connection) is not member or (
            sequence != run.accepted(member.rank) + 1 + len(quarantine or ())
        ):
            connection.release(received.charge)  # an earlier one was invalid
            return
        try:
            if isinstance(decoded, MalformedUpdateError):
                raise decoded
            staleness = _staleness(run, member, received)
            if quarantine is None and not self._vet(run, member, received, decoded, staleness):
                quarantine = member.quarantine = []
                self._count_quarantined()
        except MalformedUpdateError as error:
            connection.release(received.charge)
            self._metrics.updates_malformed.inc()
            diverges = isinstance(error, DivergedUpdateError)
            code = EndCode.DIVERGED if diverges else EndCode.MALFORMED_UPDATE
            self._expel(member, code, error)
            return
        except InvalidMessageError as error:
            connection.release(received.charge)
            self._metrics.messages_invalid.inc()
            self._expel(member, CloseCode.INVALID_MESSAGE, error)
            return
        if quarantine is None:
            connection.release(received.charge)
            self._on_accepted(member)
        else:
            quarantine.append(received)
            self._metrics.updates_quarantined.inc()
            self._departures.check_completion(member)

    def _vet(
        self, run: Run, member: Member, received: UpdateReceived, update: Update, staleness: int
    ) -> bool:
        """Accept an update; return False to put it into quarantine instead."""
        if self._config.outliers == "off" or member.trusted:
            self._accept(run, member, received, update, staleness)
            return True
        norm = norm_of(update)
        is_state = run.rounds is not None and run.rounds.is_state(update)
        limit = self._limit(run, member, is_state=is_state)
        if norm > limit and self._stands_out(run, member, received, norm, limit):
            return False
        self._accept(run, member, received, update, staleness)
        if run.rounds is None:
            if is_sample(update):
                member.norms.note(norm)
            return True
        (member.state_norms if is_state else member.norms).note_part(norm)
        if received.update.closes:
            member.norms.end_contribution()
            member.state_norms.end_contribution()
        return True

    def _limit(self, run: Run, member: Member, *, is_state: bool) -> float:
        """Return the norm above which an update of a worker is an outlier."""
        now = reference_of(
            other.state_norms if is_state else other.norms
            for other in self._others(member)
            if other.quarantine is None
        )
        reference = run.state_reference if is_state else run.reference
        return self._config.outlier_norm_multiple * reference.raise_to(now)

    def _stands_out(
        self, run: Run, member: Member, received: UpdateReceived, norm: float, limit: float
    ) -> bool:
        """Count an outlier and say so; return whether it is kept aside."""
        workers = len(self._roster.workers)
        is_kept = self._config.outliers == "quarantine" and workers >= WORKERS_MIN
        self._metrics.updates_outlying.inc()
        if is_kept or not member.stood_out:
            fate = "kept aside" if is_kept else "an outlier, and accepted"
            text = (
                f"update {received.update.sequence} of {member.name} is {fate}: its norm is "
                f"{norm:.3g} quanta, and the limit, a multiple of the others', {limit:.3g}; later "
                "ones are counted, not logged"
            )
            kind = Happening.QUARANTINED if is_kept else Happening.OUTLYING
            self._note(kind, run, member, text)
        member.stood_out = True
        if is_kept:
            member.link.send(Aside(received.update.sequence, norm, limit))
        return is_kept

    def _note(self, kind: Happening, run: Run, member: Member, text: str) -> None:
        run.journal.note(
            kind, text, run=run.name, at=self._now, rank=member.rank, level=logging.WARNING
        )

    def _accept(
        self, run: Run, member: Member, received: UpdateReceived, update: Update, staleness: int
    ) -> None:
        """Add an update to the replica and pass it on, or take it into the round."""
        if run.rounds is not None:
            self._rounds.take(run, member, received, update)
            self._count_accepted(update, len(received.update.body), staleness)
            return
        run.apply_update(update)
        run.relay.accept(member.rank, received.update, self._now, update)
        self._count_accepted(update, len(received.update.body), staleness)

    def _expel(self, member: Member, code: int, error: Exception) -> None:
        self._departures.expel(member, code, str(error), Departure.FAULT)

    def _others(self, member: Member) -> list[Member]:
        return [other for other in self._roster if other is not member]

    def _count_accepted(self, update: Update, size: int, staleness: int) -> None:
        metrics = self._metrics
        metrics.updates_accepted.inc()
        metrics.update_bytes.observe(size)
        metrics.update_density_ratio.observe(update.hits / update.length)
        metrics.update_staleness_updates.observe(staleness)

    def _count_quarantined(self) -> None:
        count = sum(member.quarantine is not None for member in self._roster)
        self._metrics.quarantined_workers.set(count)


def _check_last(member: Member, sequence: int, last: int) -> None:
    if sequence > last:
        raise InvalidMessageError(
            f"{member.name} sent update {sequence} after its last one, {last}"
        )


def _staleness(run: Run, member: Member, received: UpdateReceived) -> int:
    """Return how many accepted updates of others the worker did not have for this one.

    Of a gradient for the master's optimizer, return how many of its steps.
    """
    update = received.update
    accepted = None if run.rounds is None else run.rounds.steps
    if accepted is None:
        accepted = count_updates(run.relay.versions, without=member.rank)
    if update.based_on > accepted and not run.recovered:
        raise InvalidMessageError(
            f"update {update.sequence} of {member.name} is based on {update.based_on} "
            f"updates; there were {accepted}"
        )
    return max(accepted - update.based_on, 0)
