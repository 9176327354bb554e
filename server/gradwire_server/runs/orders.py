"""Orders of operators.

An operator is not a member of a run. The role in its key allows it to send orders; each is answered
with its result, or with the reason for a refusal. Some are to the whole daemon, some to one of its
runs: the one that the order names, or the only one. Changes by orders last as long as the daemon
runs: after a restart, its key file and ``--deny`` decide again which workers may join.
"""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gradwire_protocol import UsageError
from gradwire_protocol.crypto.keys import check_name
from gradwire_protocol.messages.admission import RefusalCode, Refuse
from gradwire_protocol.messages.orders import Action, Order, OrderDone
from gradwire_server.master.master import Master
from gradwire_server.state.roster import Member

logger = logging.getLogger("gradwire.master")

DENIED_NAMES_MAX: Final = 1_000
"""Names denied by order. With 64 bytes each, 1,000 fit into an answer beside the largest roster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Powers:
    """What orders can do."""

    status: Callable[[], dict[str, Any]]
    runs: Callable[[], Mapping[str, Master]]
    """Returns the runs in progress, by name."""
    drain: Callable[[bool], None]
    """Lets nobody in any more, or does again."""
    deny: Callable[[frozenset[str]], None]
    """Denies exactly these names; names that were denied before and are not among them may join."""


class Orders:
    """Carries out orders, and keeps the state that they change."""

    def __init__(self, powers: Powers) -> None:
        self.draining: str | None = None
        """Name of the operator that has ordered the master to drain; None while workers may
        join."""
        self.denied: frozenset[str] = frozenset()
        """Names denied by order."""
        self._powers = powers
        self._now = 0.0
        self._of_daemon: Final[dict[str, Callable[[str], str]]] = {
            Action.STATUS: self._status,
            Action.DRAIN: self._drain,
            Action.RESUME: self._resume,
        }
        self._of_keys: Final[dict[str, Callable[[str, str], str]]] = {
            Action.DENY: self._deny,
            Action.ADMIT: self._admit,
        }
        self._of_run: Final[dict[str, Callable[[str, Master], str]]] = {
            Action.CHECKPOINT: self._checkpoint,
            Action.END_RUN: self._end_run,
            Action.STOP_TRAINING: self._stop_training,
            Action.RESUME_ITEMS: self._resume_items,
        }
        self._of_members: Final[dict[str, Callable[[str, Master, str], str]]] = {
            Action.RELEASE: self._release,
            Action.EXPEL: self._expel,
        }

    def execute(self, operator: str, order: Order, now: float) -> OrderDone | Refuse:
        """Carry out an order of the operator with this name in its key, or refuse it."""
        self._now = now
        what = " ".join(filter(None, (order.action, order.name, order.run and f"in {order.run}")))
        try:
            text = self._execute(operator, order)
        except UsageError as error:
            logger.warning("refused an order of operator %s, %s: %s", operator, what, error)
            return Refuse(RefusalCode.ORDER, str(error))
        said = "" if order.action == Action.STATUS else f": {text}"
        logger.info("order of operator %s, %s%s", operator, what, said)
        return OrderDone(text)

    def _execute(self, operator: str, order: Order) -> str:
        action, name = order.action, order.name
        if action in self._of_keys or action in self._of_members:
            if not name:
                raise UsageError(f"{action} needs the name of a worker, or its rank")
        elif name and action in (*self._of_daemon, *self._of_run):
            raise UsageError(f"{action} takes no name: leave out {name!r}")
        if action == Action.PAUSE_ITEMS:
            return self._pause_items(self._run(order), name)
        if action in self._of_daemon:
            return self._of_daemon[action](operator)
        if action in self._of_keys:
            return self._of_keys[action](operator, name)
        if action in self._of_run:
            return self._of_run[action](operator, self._run(order))
        if action in self._of_members:
            return self._of_members[action](operator, self._run(order), name)
        raise UsageError(f"no such order: {action!r}; this master knows {', '.join(Action)}")

    def _run(self, order: Order) -> Master:
        """Return the run that an order is for."""
        runs = self._powers.runs()
        if order.run is not None:
            if order.run not in runs:
                raise UsageError(f"no run {order.run!r} is in progress; {_in_progress(runs)}")
            return runs[order.run]
        if len(runs) != 1:
            which = ": say which one with --run NAME" if runs else ""
            raise UsageError(f"{order.action} is for a run, and {_in_progress(runs)}{which}")
        return next(iter(runs.values()))

    # Orders to the daemon.

    def _status(self, operator: str) -> str:
        # Not escaped: \uXXXX for every character of a name could take six times the room.
        return json.dumps(self._powers.status(), ensure_ascii=False)

    def _drain(self, operator: str) -> str:
        self.draining = operator
        self._powers.drain(True)
        count = sum(len(run.roster.workers) for run in self._powers.runs().values())
        return (
            f"nobody is let in any more; the master stops when the last has left; workers: {count}"
        )

    def _resume(self, operator: str) -> str:
        if self.draining is None:
            raise UsageError("nothing to resume: no operator drains the master")
        self.draining = None
        self._powers.drain(False)
        return "workers may join again"

    # Orders about keys.

    def _deny(self, operator: str, name: str) -> str:
        check_name(name)
        if name == operator:
            raise UsageError("an operator cannot deny itself: it takes another operator's key")
        if len(self.denied) >= DENIED_NAMES_MAX:
            raise UsageError(
                f"{DENIED_NAMES_MAX} names are denied by order, which is the limit: start the "
                "master with --deny, or give the others new keys"
            )
        self._set_denied(self.denied | {name})
        return f"{name} is denied until the master ends; for longer, start it with --deny {name}"

    def _admit(self, operator: str, name: str) -> str:
        if name not in self.denied:
            raise UsageError(
                f"{name} was not denied by order; if the master's --deny names it, remove it there"
            )
        self._set_denied(self.denied - {name})
        return f"{name} may join again"

    # Orders to a run.

    def _checkpoint(self, operator: str, run: Master) -> str:
        return run.order_checkpoint()

    def _end_run(self, operator: str, run: Master) -> str:
        return run.end_run(f"operator {operator} has ended the run", self._now)

    def _stop_training(self, operator: str, run: Master) -> str:
        run.stop_training(f"operator {operator} has ordered it", self._now)
        return (
            f"told to end their training; workers: {len(run.roster.workers)}. A script ends "
            "where it looks at session.stopping, or takes session.items(); any other one trains on"
        )

    def _pause_items(self, run: Master, epochs: str) -> str:
        if not epochs:
            run.pause_items(self._now, paused=True)
            return "no items are granted any more; workers end those that they hold, and wait"
        if not (epochs.isascii() and epochs.isdigit()):
            raise UsageError(f"{Action.PAUSE_ITEMS} {epochs!r}: it takes a number of epochs")
        run.pause_items(self._now, paused=False, epochs=int(epochs))
        return f"items of epochs after number {epochs} are not granted; workers wait for them"

    def _resume_items(self, operator: str, run: Master) -> str:
        run.pause_items(self._now, paused=False)
        return "items are granted again"

    def _release(self, operator: str, run: Master, name: str) -> str:
        members = [each for each in _members(run, name) if each.quarantine is not None]
        if not members:
            raise UsageError(f"{name} is not in quarantine")
        for member in members:
            run.release(member.rank, self._now)
        return f"released from quarantine: {_names(members)}"

    def _expel(self, operator: str, run: Master, name: str) -> str:
        members = _members(run, name)
        names = _names(members)
        for member in members:
            run.expel(member.rank, f"operator {operator} has expelled it", self._now)
        return f"expelled: {names}; unless denied, it may join again"

    # Private.

    def _set_denied(self, names: frozenset[str]) -> None:
        self._powers.deny(names)
        self.denied = names


def _in_progress(runs: Mapping[str, Master]) -> str:
    if not runs:
        return "there is none"
    return f"runs in progress: {', '.join(map(repr, sorted(runs)))}"


def _members(run: Master, name: str) -> list[Member]:
    """Return the members with this name in their key, or this rank.

    Raises `UsageError` if there are none, or if the name of one is the rank of another.
    """
    named = [member for member in run.roster if member.key_name == name]
    ranked = [member for member in run.roster if str(member.rank) == name]
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
