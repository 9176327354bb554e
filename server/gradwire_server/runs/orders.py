"""Orders of operators: whoever HTTP lets give them, see `gradwire_server.http.access`.

Each is carried out at once, or refused with the reason. Some are to the whole daemon, some to one
of its runs: the one that the order names, or the only one. Changes by orders last as long as the
daemon runs: after a restart, its key file and ``--deny`` decide again which workers may join.
"""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Final, Self

from gradwire_protocol import UsageError
from gradwire_protocol.crypto.keys import check_name
from gradwire_server.master.master import Master
from gradwire_server.state.roster import Member
from gradwire_server.state.runs_over import RunsOver

logger = logging.getLogger("gradwire.master")

DENIED_NAMES_MAX: Final = 1_000
"""Names denied by order: a keyring is made of them anew for each."""

TEXT_MAX: Final = 128
"""Most characters of an action or a name, all of them printable."""


class Action(StrEnum):
    """What an operator can order."""

    DRAIN = "drain"
    """Let no more workers in, and stop when the last one has left."""
    RESUME = "resume"
    """Let workers in again."""
    DENY = "deny"
    """Accept no key of this name, and close its open connections."""
    ADMIT = "admit"
    """Accept keys of this name again."""
    RELEASE = "release"
    """End the quarantine of a worker and accept its updates that were set aside."""
    EXPEL = "expel"
    """Close the connection of a worker or an observer; it may join again."""
    CHECKPOINT = "checkpoint"
    STOP_TRAINING = "stop-training"
    """Have all workers end their training: their loops see it, finish, and the run is finished."""
    PAUSE_ITEMS = "pause-items"
    """Grant no item any more, or with a number as name, none of later epochs; workers end those
    that they hold, and wait."""
    RESUME_ITEMS = "resume-items"
    """Grant items again."""
    END_RUN = "end-run"
    """End the run in progress: its workers are sent away, and the next one to join begins another
    run."""


@dataclass(frozen=True, slots=True)
class Order:
    """An operator's order."""

    action: str
    """An `Action`; one that does not exist is refused."""
    name: str = ""
    """The name or rank concerned, or the number of epochs; empty if there is none."""
    run: str | None = None
    """The run that it is for; None for the only one."""

    def __post_init__(self) -> None:
        """Raise `ValueError` for what is no text of one line: it goes to the log."""
        for each in fields(self):
            value = getattr(self, each.name)
            if value is None and each.name == "run":
                continue
            if not isinstance(value, str):
                raise ValueError(f"the {each.name} of an order is text")  # noqa: TRY004
            if len(value) > TEXT_MAX or not value.isprintable():
                raise ValueError(f"the {each.name} of an order has {TEXT_MAX} characters at most")

    @classmethod
    def from_json(cls, content: bytes) -> Self:
        """Read an order, ``{"action": "expel", "name": "gpu1", "run": "bert"}``.

        Raises
        ------
        ValueError
            If it is no such object.
        """
        try:
            values = json.loads(content)
        except (ValueError, RecursionError):
            raise ValueError("an order is JSON, and this is none") from None
        known = {each.name for each in fields(cls)}
        if not isinstance(values, dict) or "action" not in values or values.keys() - known:
            raise ValueError('an order is an object of "action", and perhaps "name" and "run"')
        return cls(**values)


class Orders:
    """Carries out orders, and keeps the state that they change.

    Parameters
    ----------
    runs : callable
        Returns the runs in progress, by name.
    over : RunsOver
        Those that no order changes any more.
    drain : callable
        Lets nobody in any more, given True; does again, given False.
    deny : callable
        Denies exactly these names; those that were denied before and are not among them may join.
    """

    def __init__(
        self,
        runs: Callable[[], Mapping[str, Master]],
        over: RunsOver,
        drain: Callable[[bool], None],
        deny: Callable[[frozenset[str]], None],
    ) -> None:
        self.draining = False
        """Whether the master drains by order."""
        self.denied: frozenset[str] = frozenset()
        """Names denied by order."""
        self._runs = runs
        self._over = over
        self._set_draining = drain
        self._on_denied = deny
        self._now = 0.0
        self._of_daemon: Final[dict[str, Callable[[], str]]] = {
            Action.DRAIN: self._drain,
            Action.RESUME: self._resume,
        }
        self._of_keys: Final[dict[str, Callable[[str], str]]] = {
            Action.DENY: self._deny,
            Action.ADMIT: self._admit,
        }
        self._of_run: Final[dict[str, Callable[[Master], str]]] = {
            Action.CHECKPOINT: lambda run: run.order_checkpoint(),
            Action.END_RUN: lambda run: run.end_run("an operator has ended the run", self._now),
            Action.STOP_TRAINING: self._stop_training,
            Action.RESUME_ITEMS: self._resume_items,
        }
        self._of_members: Final[dict[str, Callable[[Master, str], str]]] = {
            Action.RELEASE: self._release,
            Action.EXPEL: self._expel,
        }

    def execute(self, who: str, order: Order, now: float) -> str:
        """Carry out an order of whom the log names so; return what it has come to.

        Raises
        ------
        UsageError
            If it cannot be carried out.
        """
        self._now = now
        what = " ".join(filter(None, (order.action, order.name, order.run and f"in {order.run}")))
        try:
            text = self._execute(order)
        except UsageError as error:
            logger.warning("refused an order (%s): %s: %s", who, what, error)
            raise
        logger.info("order (%s): %s: %s", who, what, text)
        return text

    def run_of(self, order: Order) -> str | None:
        """Return the name of the run that an order is for; None for none, or several."""
        if order.action in self._of_daemon or order.action in self._of_keys:
            return None
        runs = self._runs()
        name = next(iter(runs)) if order.run is None and len(runs) == 1 else order.run
        return name if name in runs else None

    def _execute(self, order: Order) -> str:
        action, name = order.action, order.name
        if action in self._of_keys or action in self._of_members:
            if not name:
                raise UsageError(f"{action} needs the name of a worker, or its rank")
        elif name and action in (*self._of_daemon, *self._of_run):
            raise UsageError(f"{action} takes no name: leave out {name!r}")
        if action == Action.PAUSE_ITEMS:
            return self._pause_items(self._run(order), name)
        if action in self._of_daemon:
            return self._of_daemon[action]()
        if action in self._of_keys:
            return self._of_keys[action](name)
        if action in self._of_run:
            return self._of_run[action](self._run(order))
        if action in self._of_members:
            return self._of_members[action](self._run(order), name)
        raise UsageError(f"no such order: {action!r}; this master knows {', '.join(Action)}")

    def _run(self, order: Order) -> Master:
        """Return the run that an order is for."""
        runs = self._runs()
        if order.run is not None:
            if order.run not in runs:
                is_over = self._over.find(order.run) is not None
                what = f"run {order.run!r} is over, and takes no orders"
                what = what if is_over else f"no run {order.run!r} is in progress"
                raise UsageError(f"{what}; {_in_progress(runs)}")
            return runs[order.run]
        if len(runs) != 1:
            which = ": say which one with --run NAME" if runs else ""
            raise UsageError(f"{order.action} is for a run, and {_in_progress(runs)}{which}")
        return next(iter(runs.values()))

    # Orders to the daemon.

    def _drain(self) -> str:
        self.draining = True
        self._set_draining(True)
        count = sum(len(run.roster.workers) for run in self._runs().values())
        return (
            f"nobody is let in any more; the master stops when the last has left; workers: {count}"
        )

    def _resume(self) -> str:
        if not self.draining:
            raise UsageError("nothing to resume: no operator drains the master")
        self.draining = False
        self._set_draining(False)
        return "workers may join again"

    # Orders about keys.

    def _deny(self, name: str) -> str:
        check_name(name)
        if len(self.denied) >= DENIED_NAMES_MAX:
            raise UsageError(
                f"{DENIED_NAMES_MAX} names are denied by order, which is the limit: start the "
                "master with --deny, or give the others new keys"
            )
        self._set_denied(self.denied | {name})
        return f"{name} is denied until the master ends; for longer, start it with --deny {name}"

    def _admit(self, name: str) -> str:
        if name not in self.denied:
            raise UsageError(
                f"{name} was not denied by order; if the master's --deny names it, remove it there"
            )
        self._set_denied(self.denied - {name})
        return f"{name} may join again"

    # Orders to a run.

    def _stop_training(self, run: Master) -> str:
        run.stop_training("an operator has ordered it", self._now)
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

    def _resume_items(self, run: Master) -> str:
        run.pause_items(self._now, paused=False)
        return "items are granted again"

    def _release(self, run: Master, name: str) -> str:
        members = [each for each in _members(run, name) if each.quarantine is not None]
        if not members:
            raise UsageError(f"{name} is not in quarantine")
        for member in members:
            run.release(member.rank, self._now)
        return f"released from quarantine: {_names(members)}"

    def _expel(self, run: Master, name: str) -> str:
        members = _members(run, name)
        names = _names(members)
        for member in members:
            run.expel(member.rank, "an operator has expelled it", self._now)
        return f"expelled: {names}; unless denied, it may join again"

    # Private.

    def _set_denied(self, names: frozenset[str]) -> None:
        self._on_denied(names)
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
