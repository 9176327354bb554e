"""The rounds of a run whose workers contribute: when one closes, and what is then relayed."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from gradwire_codecs import NOTHING, MalformedUpdateError, Update, decode
from gradwire_codecs.format.update import split_update
from gradwire_protocol import ShapedMessage
from gradwire_protocol.messages.fields import count_updates
from gradwire_protocol.messages.kinds import Kind
from gradwire_protocol.messages.link import UpdateReceived
from gradwire_protocol.messages.masters.relaying import Merged
from gradwire_protocol.messages.updates import UPDATE_BYTES_MAX, EncodedUpdate
from gradwire_server.state.roster import Member, Phase
from gradwire_server.state.run import Run
from gradwire_server.state.state import State
from gradwire_server.updates.rounds import Rounds

logger = logging.getLogger("gradwire.master")


SENDING_SECONDS: Final = 200e-6
"""Where updates are merged: from one sum to the next one, for each that it is sent to. That is
twice what sending it to one takes."""


class RoundKeeper:
    """Takes contributions, and closes rounds."""

    def __init__(self, state: State, destinations: Callable[[], list[Member]]) -> None:
        self._state = state
        self._destinations = destinations

    def take(self, run: Run, member: Member, received: UpdateReceived, update: Update) -> None:
        """Take an update into the round in progress.

        Raises `DivergedUpdateError` if it takes an element beyond the range of the run.
        """
        rounds = run.rounds
        assert rounds is not None
        if run.mode.optimizer is None:  # else it is a gradient
            run.check_range(update)
        if rounds.opened_at is None:
            self._open(run, rounds, member.rank)
        rounds.fragment_bytes = received.message.fragment_bytes
        rounds.add(member.rank, received.update, update, self._state.now)
        if rounds.has_enough:  # what comes next is of another round
            self.conclude()

    def take_sum(self, run: Run, merged: Merged, updates: Sequence[Update]) -> None:
        """Take what a relay has merged.

        Raises `DivergedUpdateError` if it takes an element beyond the range of the run.
        """
        rounds = run.rounds
        assert rounds is not None
        for update in updates:
            run.check_range(update)
        if rounds.opened_at is None:
            self._open(run, rounds)
        rounds.add_sum(merged, updates)

    def forget(self, member: Member) -> None:
        """Wait no more for a member that was removed."""
        run = self._state.run
        if run is not None and run.rounds is not None:
            run.rounds.awaited.discard(member.rank)

    def conclude(self) -> bool:
        """Close the round, if all have contributed or it is time; return whether it was closed."""
        run = self._state.run
        rounds = None if run is None else run.rounds
        if run is None or rounds is None or not run.founded:
            return False
        if run.mode.merged:
            return self._merge(run, rounds)
        is_last = self._is_last(run, rounds)
        if rounds.opened_at is None:
            if not (is_last and rounds.has_rest):
                return False
            self._close(run, rounds, is_last=True)
            return True
        if not rounds.complete and not is_last:
            return False  # what a worker has left that is gone makes no round by itself
        missing = rounds.missing(self._training(run, rounds))
        has_enough = rounds.has_enough or not missing
        if not has_enough and not rounds.is_due(self._state.now):
            return False
        if not has_enough:
            self._state.metrics.rounds_timed_out.inc()
            logger.warning(
                "run %r: a round closes after %d s without ranks %s; what they contribute counts "
                "in a later one",
                run.name,
                rounds.mode.round_timeout_seconds,
                ", ".join(map(str, missing)),
            )
        here = {member.rank for member in self._state.roster}
        rounds.retain_parts(here | self._state.leases.ranks(self._state.now))
        metrics = self._state.metrics
        metrics.rounds_closed.inc()
        metrics.round_contributors.observe(len(rounds.contributors))
        metrics.round_seconds.observe(self._state.now - rounds.opened_at)
        if is_last and rounds.complete and run.mode.has_outer_step:
            # What is left makes no step by itself; what was contributed does.
            self._close(run, rounds, is_last=False)
        self._close(run, rounds, is_last=is_last)
        return True

    def next_timer(self) -> float | None:
        """Return when `conclude` has to be called at the latest."""
        run = self._state.run
        return None if run is None or run.rounds is None else run.rounds.due

    # Private.

    def _open(self, run: Run, rounds: Rounds, *ranks: int) -> None:
        """Open a round with updates of these ranks."""
        awaited = set() if run.mode.merged else {*self._training(run, rounds), *ranks}
        sending_seconds = SENDING_SECONDS * len(self._destinations())
        rounds.merge_seconds = max(self._state.config.merge_seconds, sending_seconds)
        rounds.open(awaited, self._state.now)

    def _merge(self, run: Run, rounds: Rounds) -> bool:
        """Relay the sum of what has come, if it is time; return whether there was anything."""
        if not rounds.is_due(self._state.now):
            return False
        self._close(run, rounds, is_last=False)
        return True

    def _close(self, run: Run, rounds: Rounds, *, is_last: bool) -> None:
        """Close the round, and relay its result."""
        versions = run.relay.versions
        rank = rounds.rank_of_results(versions, self._state.now)
        based_on = rounds.based_on if run.mode.merged else count_updates(versions, without=rank)
        clocks = rounds.clocks
        means = rounds.close(self._state.now, is_last=is_last)
        bodies = [body for mean in means for body in split_update(mean, UPDATE_BYTES_MAX)]
        bodies = bodies or [NOTHING]
        for number, body in enumerate(bodies, 1):
            is_end = number == len(bodies)
            told = EncodedUpdate(
                run.relay.next_sequence(rank),
                based_on,
                body,
                closes=rounds.contained if is_end else {},
                clocks=clocks if is_end else {},
            )
            self._relay(run, rounds, told)
        self._state.queues_grew = True

    def _training(self, run: Run, rounds: Rounds) -> list[int]:
        """Return the ranks that may still contribute; not those that wait for an item."""
        idle = {rank for ledger in run.works.values() for rank in ledger.waiting}
        workers = self._state.roster.workers
        return [each.rank for each in workers if each.rank not in idle and _trains(each, rounds)]

    def _is_last(self, run: Run, rounds: Rounds) -> bool:
        """Return whether nobody contributes any more, as far as one knows."""
        state = self._state
        if run.awaits_workers:
            return False
        workers = state.roster.workers
        if not workers and state.leases.ranks(state.now):
            return False  # they may come back
        return not any(_trains(each, rounds) for each in workers)

    def _relay(self, run: Run, rounds: Rounds, encoded: EncodedUpdate) -> None:
        """Add a part of a result to the replica, and pass it on."""
        update = decode(encoded.body, run.layout.elements)
        rank = rounds.rank_of_results(run.relay.versions, self._state.now)
        try:
            run.apply_update(rank, update)
        except MalformedUpdateError as error:  # what each of several leaves in range, all may not
            logger.error("a part of a round is dropped: %s", error)  # noqa: TRY400
            encoded = replace(encoded, body=NOTHING)
            update = decode(NOTHING, run.layout.elements)
            run.apply_update(rank, update)
        message = ShapedMessage.of(
            rank, encoded.sequence, Kind.UPDATE, encoded.pack(), rounds.fragment_bytes
        )
        run.relay.accept(
            rank,
            encoded.sequence,
            message,
            update,
            self._destinations(),
            self._state.now,
            clocks=encoded.clocks,
            closes=encoded.closes,
        )


def _trains(member: Member, rounds: Rounds) -> bool:
    """Return whether a member may still contribute: it has not finished, and is heard."""
    return (
        member.phase in (Phase.SYNCING, Phase.LIVE)
        and member.quarantine is None
        and not member.removing
        and (
            member.last_sequence is None
            or rounds.accepted.get(member.rank, 0) < member.last_sequence
        )
    )
