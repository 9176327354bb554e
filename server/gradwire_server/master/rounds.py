"""The rounds of a run whose workers contribute: when one closes, and what is then relayed."""

import logging

from gradwire_codecs import NOTHING, MalformedUpdateError, Update, decode
from gradwire_codecs.format.update import split_update
from gradwire_protocol.messages.fields import count_updates
from gradwire_protocol.messages.link import UpdateReceived
from gradwire_protocol.messages.updates import UPDATE_BYTES_MAX, EncodedUpdate
from gradwire_server.state.roster import Member, Phase
from gradwire_server.state.run import Run
from gradwire_server.state.state import State
from gradwire_server.updates.rounds import Rounds, new_rank

logger = logging.getLogger("gradwire.master")


class RoundKeeper:
    """Takes contributions, and closes rounds."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._due: float | None = None
        """When the round closes without those that are missing, as `conclude` has found it."""
        self._said: set[int] = set()
        """Ranks of which the log says that a round was closed without them."""

    def take(self, run: Run, member: Member, received: UpdateReceived, update: Update) -> None:
        """Take an update into the round in progress.

        Raises `DivergedUpdateError` if it takes an element beyond the range of the run.
        """
        rounds = run.rounds
        assert rounds is not None
        if run.mode.optimizer is None:  # else it is a gradient
            run.check_range(update)
        if rounds.opened_at is None:
            rounds.open({*self._training(run, rounds), member.rank}, self._state.now)
        rounds.fragment_bytes = received.message.fragment_bytes
        rounds.add(member.rank, received.update, update, self._state.now)
        if rounds.has_enough:  # what comes next is of another round
            self.conclude()

    def forget(self, member: Member) -> None:
        """Wait no more for a member that was removed."""
        run = self._state.run
        if run is not None and run.rounds is not None:
            run.rounds.forget(member.rank)
        self._said.discard(member.rank)

    def conclude(self) -> bool:
        """Close the round, if all have contributed or it is time; return whether it was closed."""
        run = self._state.run
        rounds = None if run is None else run.rounds
        self._due = None
        if run is None or rounds is None or not run.founded:
            return False
        is_last = self._is_last(run, rounds)
        if rounds.opened_at is None:
            if not (is_last and rounds.has_rest):
                return False
            self._relay_all(run, rounds, rounds.close(self._state.now, (), is_last=True))
            return True
        if not rounds.complete and not is_last:
            return False  # what a worker has left that is gone makes no round by itself
        missing = rounds.missing(self._training(run, rounds))
        if missing and not rounds.has_enough:
            due = rounds.due(missing)
            if due is None or self._state.now < due:
                self._due = due
                return False
            self._note_missing(run, rounds, missing)
        here = {member.rank for member in self._state.roster}
        rounds.retain_parts(here | self._state.leases.ranks(self._state.now))
        metrics = self._state.metrics
        metrics.rounds_closed.inc()
        metrics.round_contributors_workers.observe(len(rounds.contributors))
        metrics.round_duration_seconds.observe(self._state.now - rounds.opened_at)
        late = [] if rounds.has_enough else missing
        self._relay_all(run, rounds, rounds.close(self._state.now, late, is_last=is_last))
        return True

    def next_timer(self) -> float | None:
        """Return when `conclude` has to be called at the latest."""
        return self._due

    # Private.

    def _note_missing(self, run: Run, rounds: Rounds, missing: list[int]) -> None:
        """Note that a round closes without some ranks; say it once of each."""
        self._state.metrics.rounds_timed_out.inc()
        if news := [rank for rank in missing if rank not in self._said]:
            logger.warning(
                "run %r: a round closes %.1f s after its first contribution, without those of "
                "ranks %s; they count in the next one. From now on nobody waits for these ranks "
                "until they contribute, and nothing is said when that happens again",
                run.name,
                self._state.now - (rounds.waits_since or self._state.now),
                ", ".join(map(str, news)),
            )
            self._said.update(news)

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

    def _relay_all(self, run: Run, rounds: Rounds, means: list[Update]) -> None:
        """Add a result to the replica, and pass it on."""
        bodies = [body for mean in means for body in split_update(mean, UPDATE_BYTES_MAX)]
        bodies = bodies or [NOTHING]
        for number, body in enumerate(bodies, 1):
            self._relay(run, rounds, body, is_end=number == len(bodies))
        self._state.queues_grew = True

    def _relay(self, run: Run, rounds: Rounds, body: bytes, *, is_end: bool) -> None:
        """Add a part of a result to the replica, and pass it on."""
        update = decode(body, run.layout.elements)
        relay = run.relay
        if rounds.rank is None:
            rounds.rank = new_rank(relay.versions, self._state.now)
        rank = rounds.rank
        try:
            run.apply_update(update)
        except MalformedUpdateError as error:  # the mean of what is in range may be beyond it
            logger.error("a part of a round is dropped: %s", error)  # noqa: TRY400
            body = NOTHING
            update = decode(body, run.layout.elements)
            run.apply_update(update)
        sequence = relay.next_sequence(rank)
        encoded = EncodedUpdate(
            sequence,
            count_updates(relay.versions, without=rank),
            body,
            closes=rounds.contained if is_end else {},
        )
        relay.accept(rank, encoded, self._state.now, update)


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
