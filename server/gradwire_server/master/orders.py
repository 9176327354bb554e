"""Orders of operators.

An operator is not a member of the run. The role in its key allows it to send orders; each is
answered with its result, or with the reason for a refusal. Changes by orders last as long as the
master runs: after a restart, its key file and ``--deny`` decide again which workers may join.
"""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from gradwire_protocol import UsageError
from gradwire_protocol.crypto.keys import check_name
from gradwire_protocol.messages.admission import RefusalCode, Refuse
from gradwire_protocol.messages.orders import Action, Order, OrderDone
from gradwire_server.state.roster import Member, Roster

logger = logging.getLogger("gradwire.master")

DENIED_NAMES_MAX: Final = 1_000
"""Names denied by order. More belong into the ``--deny-file``. With 64 bytes each, 1,000 fit into
an answer beside the largest roster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Powers:
    """The functions of a master that orders call."""

    status: Callable[[], dict[str, Any]]
    release: Callable[[Member], None]
    """Ends a quarantine."""
    expel: Callable[[Member, str], None]
    """Closes the connection of a member with a reason."""
    deny: Callable[[frozenset[str]], None]
    """Denies exactly these names; names that were denied before and are not among them may join."""
    checkpoint: Callable[[], str]
    """Orders a checkpoint and returns an answer; raises `UsageError` if it cannot."""
    end_run: Callable[[str], str]
    """Ends the run with a reason and returns an answer; raises `UsageError` if there is none."""


class Orders:
    """Carries out orders, and keeps the state that they change."""

    def __init__(self, roster: Roster, powers: Powers) -> None:
        self.draining: str | None = None
        """Name of the operator that has ordered the master to drain; None while workers may
        join."""
        self.denied: frozenset[str] = frozenset()
        """Names denied by order."""
        self._roster = roster
        self._powers = powers
        self._without_name: Final[dict[str, Callable[[str], str]]] = {
            Action.STATUS: self._status,
            Action.DRAIN: self._drain,
            Action.RESUME: self._resume,
            Action.CHECKPOINT: self._checkpoint,
            Action.END_RUN: self._end_run,
        }
        self._with_name: Final[dict[str, Callable[[str, str], str]]] = {
            Action.DENY: self._deny,
            Action.ADMIT: self._admit,
            Action.RELEASE: self._release,
            Action.EXPEL: self._expel,
        }

    def execute(self, operator: str, order: Order) -> OrderDone | Refuse:
        """Carry out an order of the operator with this name in its key, or refuse it."""
        what = f"{order.action} {order.name}".rstrip()
        try:
            text = self._execute(operator, order)
        except UsageError as error:
            logger.warning("refused an order of operator %s, %s: %s", operator, what, error)
            return Refuse(RefusalCode.ORDER, str(error))
        said = "" if order.action == Action.STATUS else f": {text}"
        logger.info("order of operator %s, %s%s", operator, what, said)
        return OrderDone(text)

    def _execute(self, operator: str, order: Order) -> str:
        if order.action in self._without_name:
            if order.name:
                raise UsageError(f"{order.action} takes no name: leave out {order.name!r}")
            return self._without_name[order.action](operator)
        if order.action in self._with_name:
            if not order.name:
                raise UsageError(f"{order.action} needs the name of a worker, or its rank")
            return self._with_name[order.action](operator, order.name)
        raise UsageError(f"no such order: {order.action!r}; this master knows {', '.join(Action)}")

    # Orders without a name.

    def _status(self, operator: str) -> str:
        # Not escaped: \uXXXX for every character of a name could take six times the room.
        return json.dumps(self._powers.status(), ensure_ascii=False)

    def _drain(self, operator: str) -> str:
        self.draining = operator
        count = len(self._roster.workers)
        return (
            f"nobody is let in any more; the master stops when the last has left; workers: {count}"
        )

    def _resume(self, operator: str) -> str:
        if self.draining is None:
            raise UsageError("nothing to resume: no operator drains the master")
        self.draining = None
        return "workers may join again"

    def _checkpoint(self, operator: str) -> str:
        return self._powers.checkpoint()

    def _end_run(self, operator: str) -> str:
        return self._powers.end_run(f"operator {operator} has ended the run")

    # Orders with a name.

    def _deny(self, operator: str, name: str) -> str:
        check_name(name)
        if name == operator:
            raise UsageError("an operator cannot deny itself: it takes another operator's key")
        if len(self.denied) >= DENIED_NAMES_MAX:
            raise UsageError(
                f"{DENIED_NAMES_MAX} names are denied by order, which is the limit: write names "
                "into the master's --deny-file"
            )
        self._set_denied(self.denied | {name})
        return f"{name} is denied until the master ends; for longer, start it with --deny {name}"

    def _admit(self, operator: str, name: str) -> str:
        if name not in self.denied:
            raise UsageError(
                f"{name} was not denied by order; if the master's --deny or --deny-file names it, "
                "remove it there"
            )
        self._set_denied(self.denied - {name})
        return f"{name} may join again"

    def _release(self, operator: str, name: str) -> str:
        members = [member for member in self._members(name) if member.quarantine is not None]
        if not members:
            raise UsageError(f"{name} is not in quarantine")
        for member in members:
            self._powers.release(member)
        return f"released from quarantine: {_names(members)}"

    def _expel(self, operator: str, name: str) -> str:
        members = self._members(name)
        names = _names(members)
        for member in members:
            self._powers.expel(member, f"operator {operator} has expelled it")
        return f"expelled: {names}; unless denied, it may join again"

    # Private.

    def _set_denied(self, names: frozenset[str]) -> None:
        self._powers.deny(names)
        self.denied = names

    def _members(self, name: str) -> list[Member]:
        """Return the members with this name in their key, or this rank.

        Raises `UsageError` if there are none, or if the name of one is the rank of another.
        """
        named = [member for member in self._roster if member.key_name == name]
        ranked = [member for member in self._roster if str(member.rank) == name]
        if named and ranked and named != ranked:
            raise UsageError(
                f"{name} is the rank of {_names(ranked)}, and the name in the key of "
                f"{_names(named)}: say the rank of the latter, or the name in the key of the former"
            )
        found = named or ranked
        if not found:
            what = "rank" if name.isdecimal() else "key name"
            raise UsageError(f"no member has the {what} {name}: status lists the members")
        return found


def _names(members: list[Member]) -> str:
    return ", ".join(member.name for member in members)
