"""The reception: acts on requests of connections in the lobby.

Each key has one connection to a run, the newest. A worker that joins moves from the lobby to the
roster; a refused worker stays in the lobby.
"""

import logging
from collections.abc import Callable
from typing import Final

from gradwire_protocol import CloseCode, Connection, InOrder, Role
from gradwire_protocol.messages.admission import Follow, Join, Promise, Refuse, Resume
from gradwire_protocol.messages.kinds import EndCode
from gradwire_protocol.messages.link import Link, Message, UpdateReceived
from gradwire_protocol.messages.updates import Finished
from gradwire_server.master.admission import (
    check_claims,
    finished_without,
    mode_of,
    no_memory_for,
    not_expected,
    of_an_earlier_run,
    refusal,
    refusal_by_role,
)
from gradwire_server.master.buffer_relay import BufferRelay
from gradwire_server.master.departures import Departures
from gradwire_server.master.items import Items
from gradwire_server.master.terms import Terms
from gradwire_server.metrics import Departure
from gradwire_server.replica.founding import add_returned, welcome, welcome_back
from gradwire_server.replica.recovery import can_follow
from gradwire_server.series.journal import Happening
from gradwire_server.state.lobby import why_replaced
from gradwire_server.state.restart import RunRecovery
from gradwire_server.state.roster import Member, role_of
from gradwire_server.state.run import Run
from gradwire_server.state.state import State
from gradwire_server.trunks.branch import BranchConnection
from gradwire_server.updates.update_rate import UpdateRate

logger = logging.getLogger("gradwire.master")

ANSWER_SECONDS_MIN: Final = 5.0
"""Least time that a restarted master allows a worker for an answer: a step of its training, and
some round trips."""

RUN_DEFAULT: Final = "default"
"""Name of a run for which neither the worker nor the master has a name."""


class Reception:
    """Acts on requests of connections in the lobby."""

    def __init__(
        self,
        state: State,
        departures: Departures,
        terms: Terms,
        buffers: BufferRelay,
        items: Items,
    ) -> None:
        self._state = state
        self._buffers = buffers
        self._items = items
        self._terms = terms
        self.on_early_join: Callable[[Link, Join], None] = self._refuse_not_in_charge
        """Called with a request to join while this master is not in charge."""
        self.on_promise: Callable[[Link, Promise], None] = lambda link, promise: None
        """Called with the answer of a worker that was asked to follow in another term."""
        self._departures = departures

    def receive(self, link: Link, request: Join | Follow | Promise) -> None:
        """Act on a request of a connection in the lobby.

        Raises `InvalidMessageError` if the peer must not send it.
        """
        if link.connection not in self._state.lobby.at(self._state):
            self._replace_members(link.connection)
            self._state.lobby.enter(link, self._state.now, self._state)
        match request:
            case Join():
                answer = self.join if self._terms.in_charge else self.on_early_join
                answer(link, request)
            case Follow():
                self._terms.receive_follow(link, request)
            case Promise():
                self.on_promise(link, request)

    def join(self, link: Link, join: Join) -> None:
        """Admit a worker or observer, or refuse it with a reason."""
        if join.resume is not None and not self._terms.note_term(join.resume.term):
            self._refuse_not_in_charge(link, join)
            return
        until = self._expects_returns_until
        if until is not None and join.resume is None and role_of(link.connection) is Role.WORKER:
            logger.info(
                "%s waits for up to %.1f s: workers of a run before this master's start may come "
                "back",
                join.name,
                until - self._state.now,
            )
            self._state.lobby.defer_join(link.connection, join, until)
            return
        was_behind_relay = False
        if join.resume is not None or join.partial is not None:
            was_behind_relay = self._replace_twin(link.connection, join)
        self._answer(link, join)
        if was_behind_relay:
            self._departures.finish_run_if_complete()
            self._departures.end_run_if_over()

    def refuse(self, connection: Connection, join: Join, refused: Refuse) -> None:
        """Refuse a request to join."""
        self._state.lobby.refuse(connection, join.name, refused, self._state.metrics)

    @property
    def has_deferred(self) -> bool:
        """Whether any request is deferred."""
        return self._state.lobby.has_deferred(self._state)

    def answer_deferred(self) -> None:
        """Answer deferred requests, once no worker is expected to return any more."""
        if self.has_deferred and self._expects_returns_until is None:
            answer = self.join if self._terms.in_charge else self.on_early_join
            for link, join in self._state.lobby.pop_deferred(self._state):
                answer(link, join)

    def next_timer(self) -> float | None:
        """Return when deferred requests may be answered; None without any."""
        return self._expects_returns_until if self.has_deferred else None

    # Private.

    def _answer(self, link: Link, join: Join) -> None:
        """Admit a worker or observer that may be, or refuse it."""
        run = self._run_for(link, join)
        if isinstance(run, Refuse):
            self.refuse(link.connection, join, run)
        elif join.resume is not None:
            self._admit_returning(link, join, join.resume, run)
        else:
            self._admit_new(link, join, run)

    @property
    def _expects_returns_until(self) -> float | None:
        """Until when workers may return before new ones join; None for no such wait.

        A restarted master has no run. If a new worker joined first, its parameters would start
        another run, in which returning workers have no place. And after the run was recovered, a
        worker may return that the others did not know of; its rank must still be free.
        """
        state = self._state
        run = state.run
        recovery = None if run is None else run.recovery
        if recovery is not None and recovery.gathering:
            return recovery.deadline
        is_new = run is None or run.awaits_workers or run.recovered or recovery is not None
        return (
            state.expects_returns_until
            if is_new and state.now < state.expects_returns_until
            else None
        )

    def _refuse_not_in_charge(self, link: Link, join: Join) -> None:
        self.refuse(link.connection, join, self._terms.refusal())

    def _replace_members(self, connection: Connection) -> None:
        """Close connections of members with the same key."""
        for member in self._state.roster:
            reason = why_replaced(member.link.connection, connection)
            if reason is not None:
                self._departures.expel(member, CloseCode.REPLACED, reason, Departure.REPLACED)

    def _replace_twin(self, connection: Connection, join: Join) -> bool:
        """Close the old connection of a returning worker, if its loss was not noticed yet.

        Returns whether that was behind a relay. All workers of one that is lost are back at about
        the same time, and the run must not finish with the first of them.
        """
        twin = self._state.roster.with_id(join.worker_id)
        if twin is None or twin.link.connection.identity != connection.identity:
            return False
        is_branch = isinstance(twin.link.connection, BranchConnection)
        reason, departure = "its worker is back over another connection", Departure.REPLACED
        self._departures.expel(twin, CloseCode.REPLACED, reason, departure, is_back=is_branch)
        return is_branch

    def _run_for(self, link: Link, join: Join) -> Run | Refuse:
        """Return the run that a peer may join, perhaps a new one, or the refusal."""
        state, role = self._state, role_of(link.connection)
        run, own = state.run, None
        if run is not None and not state.roster.workers:
            if join.resume is not None:
                # Workers' replicas may be newer than the checkpoint: `recover` compares them.
                if run.awaits_workers and run.matches(join):
                    run, own = None, run
            elif run.finished or join.run not in (None, run.name) or self._gives_way(run, join):
                # The run has no workers left, and it is over, or this worker names another one. But
                # a resumed run still waits for its first worker.
                run = run if run.awaits_workers else None
        refused = refusal_by_role(
            role, run, draining=state.draining, stopping=state.stopping
        ) or refusal(join, state, run)
        if refused is not None:
            return refused
        return self._new_run(join, own) if run is None else run

    def _gives_way(self, run: Run, join: Join) -> bool:
        """Return whether a run without workers gives way to another model.

        It does once none of its workers can come back under its rank any more.
        """
        state = self._state
        if run.difference(join.layout) is None or state.leases.ranks(state.now):
            return False
        if not run.awaits_workers:
            logger.warning(
                "run %r has no worker any more, and gives way to another model, that of %s",
                run.name,
                join.name,
            )
        return True

    def _new_run(self, join: Join, own: Run | None) -> Run | Refuse:
        """Return a run that begins or is recovered with a worker, or the refusal.

        `own` is the master's own copy of the run that is recovered.
        """
        state = self._state
        finished = None if own is not None else state.finished_runs.find(join)
        if finished is not None:
            return finished_without(finished)
        if join.resume is not None and state.new_run:
            return of_an_earlier_run()
        if join.partial is not None:
            return not_expected(state.config)  # the run of its partial replica may still return
        try:
            name = join.run or state.config.run or RUN_DEFAULT
            run = Run.begin(name, join, state.config.relay, mode_of(join, state.config))
            log = run.relay.log
            log.name = log.name.continued(0, state.now)
        except MemoryError:
            return no_memory_for(join)
        if join.resume is not None:
            seconds = state.config.recovery_seconds
            answer_seconds = max(seconds, ANSWER_SECONDS_MIN)
            run.recovery = RunRecovery(
                answer_seconds,
                state.now + seconds,
                own=None if own is None else own.relay.log.place,
                needs_last_results=run.mode.has_outer_step,
            )
            if own is not None:
                run.local_copy, run.series = own, own.series
        return run

    def _admit_returning(self, link: Link, join: Join, resume: Resume, run: Run) -> None:
        """Give a returning worker its rank, and send it the updates that it has missed."""
        state = self._state
        if run.recovery is not None:
            self._admit_to_recovery(link, join, resume, run)
            return
        lease = state.leases.find(join.worker_id, link.connection.identity, state.now)
        is_expected = lease is not None and lease.rank == resume.rank
        if run.recovered and self._has_left_since(link, resume):
            return
        # A worker that no other worker knew may come back to a recovered run. But this master may
        # have given its rank to another worker: then it has more updates of that rank.
        may_return = (
            run.recovered
            and resume.rank not in run.assigned_ranks
            and state.roster.at(resume.rank) is None
            and resume.sequence >= run.accepted(resume.rank)
        )
        if not is_expected and not may_return:
            self.refuse(link.connection, join, not_expected(state.config))
            return
        check_claims(resume, run)
        state.leases.end(join.worker_id)
        run.unclaimed.discard(resume.rank)
        state.lobby.leave(link.connection)
        member = self._add_member(resume.rank, link, join, run)
        state.metrics.rejoins.inc()
        if can_follow(member, run):
            text = f"{member.name} is back in run {run.name!r}"
            state.note(Happening.BACK, text, rank=member.rank)
            welcome_back(member, run, state.roster, state.now)
        else:
            text = f"{member.name} is back in run {run.name!r}, and is sent the replica"
            state.note(Happening.BACK, text, rank=member.rank)
            welcome(member, run, state.roster, state.now)
        run.must_repeat_stable = True
        state.tell_roster()
        self._buffers.enter_again(member)
        if run.finished:
            member.last_sequence = resume.sequence
            said = Finished(dict(run.relay.versions))
            member.buffers.send_after_buffers(link, said, said.pack())

    def _admit_to_recovery(self, link: Link, join: Join, resume: Resume, run: Run) -> None:
        """Admit a returning worker to a run that is being recovered."""
        state = self._state
        if self._has_left_since(link, resume):
            return
        if state.roster.at(resume.rank) is not None:
            self.refuse(link.connection, join, not_expected(state.config))
            return
        state.lobby.leave(link.connection)
        if run is not state.run:
            self._begin(run)
        member = self._add_member(resume.rank, link, join, run)
        state.metrics.rejoins.inc()
        text = f"{member.name} is back, and run {run.name!r} is being recovered"
        state.note(Happening.BACK, text, rank=member.rank)
        add_returned(member, resume, run, state.roster, state.now)
        state.tell_roster()

    def _has_left_since(self, link: Link, resume: Resume) -> bool:
        """Where two workers claim a rank, disconnect the one that leaves; return if it is this one.

        The previous master had let one of them leave and given its rank to the other; only the
        confirmation was lost with that master.
        """
        state = self._state
        holder = state.roster.at(resume.rank)
        if holder is None:
            return False
        if resume.leaving:
            state.lobby.leave(link.connection)
            link.connection.close(EndCode.LEFT, "left", state.now)
            return True
        back = None if state.run is None else state.run.recovery
        said = None if back is None else back.returned.get(holder)
        if holder.leaving is not None or (said is not None and said.leaving):
            self._departures.expel(holder, EndCode.LEFT, "left", Departure.LEFT)
        return False

    def _begin(self, run: Run) -> None:
        """Serve a run from now on, instead of the last one."""
        state = self._state
        self._departures.expel_observers()
        if state.run is not None and state.run.name == run.name and state.run is not run.local_copy:
            state.run.ended = True  # it has given way
        state.end_run()
        state.serve(run)

    def _admit_new(self, link: Link, join: Join, run: Run) -> None:
        state, role = self._state, role_of(link.connection)
        state.lobby.leave(link.connection)
        if run is not state.run:
            self._begin(run)
        state.leases.end_of(link.connection.identity)
        state.leases.end(join.worker_id)
        kept = state.leases.ranks(state.now) | run.unclaimed | run.claimable_ranks
        rank = state.roster.free_rank(join.rank, role, kept)
        run.assigned_ranks.add(rank)
        if run.rounds is not None:
            run.rounds.forget_parts(rank)
        member = self._add_member(rank, link, join, run)
        if run.awaits_workers and not member.observes:
            run.awaits_workers, log = False, run.relay.log
            log.name = log.name.continued(log.head, state.now)
        state.metrics.joins.inc()
        what = "observes" if member.observes else "joined"
        state.note(Happening.JOINED, f"{member.name} {what} run {run.name!r}", rank=member.rank)
        welcome(member, run, state.roster, state.now)
        state.tell_roster()
        self._buffers.enter(member)

    def _add_member(self, rank: int, link: Link, join: Join, run: Run) -> Member:
        """Add a member to the roster; the caller sends it the parameters next."""
        state = self._state
        first = run.accepted(rank) + 1
        pace: UpdateRate[UpdateReceived] = UpdateRate(state.config.update_rate_max)
        member = Member(rank, join, link, InOrder(first), pace=pace)
        state.roster.add_member(member)
        state.count_members()
        self._items.enter(member)
        return member


def name_of(message: Message) -> str:
    """Return the name of a message's type, for errors."""
    return "update" if isinstance(message, UpdateReceived) else type(message).__name__
