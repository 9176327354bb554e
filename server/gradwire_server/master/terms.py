"""Terms: which of two masters is in charge, so that never both are.

A run can have two masters: the *primary*, which begins it, and its *standby*, which receives the
same messages as an observer and takes over when the primary is lost. Each has the address of the
other on its command line. A master is in charge of a *term*, a number: odd for the primary, even
for the standby, so that no term belongs to both. (A restarted master may use a term of its own
again, if no returned worker has heard of it.) A worker says in its JOIN the highest term that it
has followed or promised to follow, and never follows a master with a lower one. That alone is not
enough, because a master whose workers are cut off does not know yet that they follow the other one.
Three rules are:

1. *The standby takes over by promises.* The primary sends it the *voters*: all live workers. When
   the standby has lost the primary, and more than half of the voters have connected to it, it asks
   them to follow it in the next term. A worker that promises that never returns to the primary.
   With promises of more than half of the voters, the standby is in charge.
2. *The primary needs half.* It remembers which sets of voters its standby may have: the last one
   that the standby has confirmed, and those sent since. Half of each set must be connected to the
   primary, or have left in order (these can promise nothing any more). While that is not so, the
   primary declares nothing stable; and if it has lost the standby, too, it steps down: it closes
   all connections and forgets the run, so that its workers look for the other master. More than
   half of a set there and half of it here is impossible.
3. *A master without a run asks the other one.* A primary that was restarted, or has stepped down,
   is not in charge until its standby sends FOLLOW, which means: I am not in charge. With that the
   standby forgets its voters, and so cannot take over until it receives new ones. A restarted
   standby has no voters.

A stable update is in the replicas of all workers that were live at that time, and these were half
of the voters, not counting those that had left. The workers that promise are more than half. So one
of them has the update; and the run continues with the most advanced of their replicas, or with the
standby's own (see `restart`).

A standby that never returns must not bind the primary to its last voters for ever. So a primary
that has lost it moves on to its next term and has its workers promise that. With promises of half
of each set, the standby can never again get more than half for *its* next term, and the primary is
free of it: the standby only ever asks for the term after the one it followed.
"""

import logging
from typing import Any, Final

from gradwire_protocol import CloseCode, Connection, InOrder, InvalidMessageError, Role
from gradwire_protocol.messages.admission import (
    CODEC_VERSION,
    Follow,
    Join,
    Promise,
    RefusalCode,
    Refuse,
    Voters,
)
from gradwire_protocol.messages.fields import TERM_MAX, WORKER_ID_BYTES
from gradwire_protocol.messages.kinds import EndCode
from gradwire_protocol.messages.link import Link
from gradwire_server.master.departures import Departures
from gradwire_server.metrics import Departure
from gradwire_server.replica.founding import welcome
from gradwire_server.state.roster import Member, Phase
from gradwire_server.state.state import State

logger = logging.getLogger("gradwire.master")

VOTERS_SETS_MAX: Final = 256
"""Most sets of voters that a standby has not confirmed: with 4,094 workers, 17 MB of ids."""

TERMS_AHEAD_MAX: Final = 1_000
"""How far the term of a worker may be ahead. A restarted master believes it; but each term takes
the loss of a master, and numbers must not run out."""

STANDBY_NAME: Final = "standby"

BEHIND_SECONDS_MAX: Final = 10.0
"""How long an update may be under way to the standby. Updates that it lacks are not stable; workers
keep these, and wait when they keep too many. An expelled standby may return, and is sent the
replica."""


class Terms:
    """Whether this master is in charge, and whether the other one could be."""

    def __init__(self, state: State, departures: Departures) -> None:
        config = state.config
        self.other = config.standby or config.standby_of
        """``host:port`` of the other master; None where there is none."""
        self.is_standby = config.standby_of is not None
        """Whether this master was started as the standby."""
        self.in_charge = self.other is None
        self._state = state
        self._departures = departures
        self._standby: Link | None = None
        self._agreed = 0
        """The term in which the standby sent FOLLOW, or in which it can no longer take over."""
        self._voters: dict[int, frozenset[bytes]] = {}
        """The sets of voters that the standby may have, by number."""
        self._numbered = 0
        """Number of the last set."""
        self._left: set[bytes] = set()
        """Voters that have left in order."""
        self._asked: set[Member] = set()
        """Members that were asked for a promise in this term."""
        self._promised: set[bytes] = set()
        """Workers that follow this master in its term, and will follow none in an earlier one."""

    @property
    def term(self) -> int:
        """The highest term heard of; while in charge, our own."""
        return self._state.leadership.term

    @property
    def has_standby(self) -> bool:
        """Whether the standby is connected."""
        return self._standby is not None

    @property
    def holds_half(self) -> bool:
        """Whether half of each set of voters is connected here, or has left."""
        here = self._left | {member.join.worker_id for member in self._state.roster.workers}
        return self._half_of_each(here)

    # Connections.

    def refusal(self) -> Refuse:
        """Return the refusal for a worker while another master may be in charge."""
        who = "a standby" if self.is_standby else "the first master, and waits for its standby"
        return Refuse(
            RefusalCode.NOT_IN_CHARGE,
            f"this is {who}, and in charge of nothing now: try {self.other}, or this one again",
            self.other,
        )

    def note_term(self, term: int) -> bool:
        """Note the highest term of a worker; return whether this master is still in charge.

        A master in charge hears of a higher term of the other one only from a worker that has
        promised to follow in it.

        Raises `InvalidMessageError` if the term is more than `TERMS_AHEAD_MAX` ahead.
        """
        if term > self.term + TERMS_AHEAD_MAX:
            raise InvalidMessageError(
                f"term {term}; this master's is {self.term}; the limit is {TERMS_AHEAD_MAX} ahead"
            )
        if self.other is None:
            self.raise_to(term)
            return True
        run = self._state.run
        if not self.is_standby and (run is None or not run.founded):
            # No worker follows this master yet, and the standby has said that it is not in charge:
            # earlier terms belong to masters that are gone.
            if term >= self.term:
                self.raise_to(self.next_term(term))
            self._agreed = self.term
            return True
        if not self.is_standby and term % 2 == 0 and term > self._agreed:
            self.step_down(f"a worker has promised its standby to follow it in term {term}")
            return False
        if term > self.term:
            self.raise_to(self.next_term(term))
        return True

    def take_charge(self, term: int) -> None:
        """Take charge of a term."""
        self._state.leadership.term = self._agreed = term
        self._state.leadership.other = self.other
        self.in_charge = True
        logger.warning("in charge of term %d", term)

    def raise_to(self, term: int) -> None:
        """Note a term, if it is the highest so far."""
        leadership = self._state.leadership
        leadership.term = max(leadership.term, term)

    def next_term(self, after: int) -> int:
        """Return the lowest term of this master, odd or even, above a term."""
        term = after + 1
        ours = 0 if self.is_standby else 1
        term += (term - ours) % 2
        if term > TERM_MAX:
            raise InvalidMessageError(f"term {after}; the last one is {TERM_MAX}")
        return term

    # The standby.

    def receive_follow(self, link: Link, follow: Follow) -> None:
        """Act on FOLLOW: a standby follows this master, or confirms a set of voters.

        Raises `InvalidMessageError` if the peer is no standby, or must not send it now.
        """
        identity, connection = link.connection.identity, link.connection
        if identity is not None and identity.role is not Role.STANDBY:
            raise InvalidMessageError(f"Follow from {identity.name}, which is no standby")
        if self._standby is link:
            if follow.voters is None:
                raise InvalidMessageError("Follow for a second time")
            for number in [each for each in self._voters if each < follow.voters]:
                del self._voters[number]
            self._left &= frozenset().union(*self._voters.values())
            return
        if follow.voters is not None:
            raise InvalidMessageError(f"Follow with voters {follow.voters} that were never sent")
        if self.other is None or self.is_standby:
            reason = (
                "this master is a standby itself"
                if self.is_standby
                else "this master has no standby: start it with --standby HOST:PORT"
            )
            refused = Refuse(RefusalCode.ROLE, reason)
            self._state.lobby.refuse(connection, STANDBY_NAME, refused, self._state.metrics)
            return
        if self._standby is not None:
            reason = "the standby is back over another connection"
            self._expel_standby(CloseCode.REPLACED, reason, Departure.REPLACED)
        self._state.lobby.remove_deadline(connection)
        self._standby = link
        self._forget_voters()
        logger.info("the standby at %s is connected", connection.address)
        if not self.in_charge:
            self.take_charge(self.next_term(max(self.term, follow.term)))
        else:
            self.raise_to(self.next_term(follow.term) if follow.term > self.term else self.term)
        self._agreed = self.term

    # The workers.

    def note_left(self, member: Member) -> None:
        """Note that a worker has left in order: it can promise nothing any more."""
        if any(member.join.worker_id in voters for voters in self._voters.values()):
            self._left.add(member.join.worker_id)

    def receive(self, member: Member, message: Follow | Promise) -> None:
        """Act on FOLLOW of the standby, or PROMISE of a worker.

        Raises `InvalidMessageError` if the member must not send it.
        """
        if isinstance(message, Follow) and member.stands_by:
            self.receive_follow(member.link, message)
        elif isinstance(message, Promise) and not member.observes:
            if message.term == self.term:
                self._promised.add(member.join.worker_id)
        else:
            what = type(message).__name__
            who = f"{member.name}, an observer" if member.observes else member.name
            raise InvalidMessageError(f"{what} from {who}")

    def conclude(self) -> None:
        """Do what is due; the master calls this after every event."""
        self._drop_if_behind()
        if self._standby is not None and not self._is_here(self._standby.connection):
            self._lose_standby()
        if not self.in_charge or self.other is None:
            return
        if self._standby is not None:
            self._send_run(self._standby)
            self._send_voters(self._standby)
        elif self._voters:
            self._become_free()

    def step_down(self, reason: str) -> None:
        """Stop being in charge: close all connections, and forget the run."""
        logger.error("stepping down: %s", reason)
        self._state.decoder.drain()
        self.in_charge = False
        self._forget_voters()
        self._departures.stop(f"this master steps down: {reason}", EndCode.STEPPED_DOWN)
        if self._standby is not None and self._standby.connection in self._state.lobby:
            self._state.lobby.end(
                self._standby.connection, EndCode.STEPPED_DOWN, reason, self._state.now
            )
        self._standby = None
        self._state.end_run()
        self._state.finished_runs.clear()  # the other master may continue these runs

    def status(self) -> dict[str, Any]:
        """Return the status of this master, as values that JSON has."""
        role = "standby" if self.is_standby else "primary"
        return {
            "role": None if self.other is None else role,
            "in_charge": self.in_charge,
            "term": self.term,
            "other": self.other,
            "standby_connected": self.has_standby,
            "standby_behind": self.standby_lag,
        }

    @property
    def standby_lag(self) -> int:
        """How many updates the standby lacks: all of them as long as it has no replica."""
        run = self._state.run
        if self._standby is None or run is None:
            return 0
        member = self._state.roster.of(self._standby.connection)
        if member is None or member.phase is not Phase.LIVE:
            return sum(run.relay.versions.values())
        return run.relay.lacks(member)

    # Private.

    def _is_here(self, connection: Connection) -> bool:
        return connection in self._state.lobby or self._state.roster.of(connection) is not None

    def _drop_if_behind(self) -> None:
        """Expel a standby that is too slow: updates that it lacks are not stable."""
        if self._standby is None:
            return
        member = self._state.roster.of(self._standby.connection)
        run = self._state.run
        oldest = None if member is None or run is None else run.relay.waits_since(member)
        if oldest is not None and self._state.now - oldest > BEHIND_SECONDS_MAX:
            reason = f"an update was not delivered to it in {BEHIND_SECONDS_MAX:g} s"
            self._expel_standby(EndCode.TOO_SLOW, reason, Departure.TOO_SLOW)

    def _lose_standby(self) -> None:
        """Move to the next term, after the standby was lost."""
        self._standby = None
        logger.warning("the standby is gone")
        self._promised.clear()
        self._asked.clear()
        self.raise_to(self.next_term(self.term))

    def _expel_standby(self, code: int, reason: str, departure: Departure) -> None:
        assert self._standby is not None
        member = self._state.roster.of(self._standby.connection)
        if member is None:
            self._state.lobby.expel(self._standby.connection, code, reason, self._state.now)
        else:
            self._departures.expel(member, code, reason, departure)
        self._lose_standby()

    def _forget_voters(self) -> None:
        self._voters.clear()
        self._left.clear()
        self._promised.clear()
        self._asked.clear()

    def _half_of_each(self, workers: set[bytes]) -> bool:
        return all(2 * len(voters & workers) >= len(voters) for voters in self._voters.values())

    def _send_run(self, standby: Link) -> None:
        """Make the standby a member as soon as there is a run."""
        state, connection = self._state, standby.connection
        run = state.run
        if run is None or not run.founded or connection not in state.lobby:
            return
        state.lobby.leave(connection)
        taken = state.leases.ranks(state.now) | run.unclaimed
        rank = state.roster.free_rank(None, Role.OBSERVER, taken)
        join = Join(
            run.name, bytes(WORKER_ID_BYTES), STANDBY_NAME, None, CODEC_VERSION,
            run.replica.quantum_exponent, run.layout,
        )  # fmt: skip
        member = Member(rank, join, standby, InOrder(1), stands_by=True)
        state.roster.add_member(member)
        state.count_members()
        welcome(member, run, state.roster, state.now)
        state.queues_grew = True

    def _send_voters(self, standby: Link) -> None:
        """Send the voters to the standby, if they have changed."""
        live = [member for member in self._state.roster.workers if member.phase is Phase.LIVE]
        voters = frozenset(member.join.worker_id for member in live)
        if self._voters and self._voters[self._numbered] == voters:
            return
        if len(self._voters) >= VOTERS_SETS_MAX:
            reason = f"{VOTERS_SETS_MAX} sets of voters are not confirmed"
            self._expel_standby(EndCode.TOO_SLOW, reason, Departure.TOO_SLOW)
            return
        self._numbered += 1
        self._voters[self._numbered] = voters
        standby.send(Voters(self._numbered, self.term, tuple(sorted(voters))))

    def _become_free(self) -> None:
        """Without a standby: make sure that it cannot take over any more, or step down."""
        if not self.holds_half:
            self.step_down("its standby is lost, and more than half of the workers that it knew")
            return
        for member in self._state.roster.workers:
            if member.phase is Phase.LIVE and member not in self._asked:
                self._asked.add(member)
                member.link.send(Promise(self.term))
        if self._half_of_each(self._promised | self._left):
            self._forget_voters()
            self._agreed = self.term
            logger.info("the standby cannot take over before it is back")
