"""Orders: each does what it says or is refused with a reason."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import Role, UsageError
from gradwire_server.runs.orders import DENIED_NAMES_MAX, Action, Order, Orders
from gradwire_server.state.roster import Member, Roster
from gradwire_server.state.run import Run
from gradwire_server.state.runs_over import RunsOver
from support.members import member, roster_of
from support.peer import join_request
from support.wording import naming

NAMED = (Action.DENY, Action.ADMIT, Action.RELEASE, Action.EXPEL)
UNNAMED = tuple(action for action in Action if action not in NAMED)


class OrderedRun:
    """A run, and what orders have done to it."""

    def __init__(self, members: Sequence[Member] = ()) -> None:
        self.roster = roster_of(members) if members else Roster()
        self.done: list[Any] = []
        self.no_checkpoints = ""
        """Why there are none."""

    def release(self, rank: int, now: float) -> None:
        self.done.append(("release", self.roster.at(rank)))

    def expel(self, rank: int, reason: str, now: float) -> None:
        self.done.append(("expel", self.roster.at(rank), reason))

    def order_checkpoint(self) -> str:
        if self.no_checkpoints:
            raise UsageError(self.no_checkpoints)
        self.done.append(("checkpoint",))
        return "it is written"

    def end_run(self, reason: str, now: float) -> str:
        self.done.append(("end-run",))
        return f"over: {reason}"

    def stop_training(self, reason: str, now: float) -> None:
        self.done.append(("stop-training", reason))

    def pause_items(self, now: float, *, paused: bool, epochs: int | None = None) -> None:
        self.done.append(("pause-items", paused, epochs))


class Desk:
    """Where orders come in, and what they come to."""

    def __init__(self, members: Sequence[Member] = ()) -> None:
        self.run = OrderedRun(members)
        self.runs: dict[str, Any] = {"alpha": self.run}
        self.done = self.run.done
        self.drains: list[bool] = []
        self.over = RunsOver()
        self.orders = Orders(
            lambda: self.runs,
            self.over,
            self.drains.append,
            lambda names: self.done.append(("deny", names)),
        )

    def order(self, action: str, name: str = "", run: str | None = None) -> str:
        return self.orders.execute("operator", Order(action, name, run), 1.0)

    def refused(self, action: str, name: str = "", run: str | None = None) -> str:
        before = (list(self.done), self.orders.denied, self.orders.draining)
        with pytest.raises(UsageError) as refused:
            self.order(action, name, run)
        assert before == (self.done, self.orders.denied, self.orders.draining)
        return str(refused.value)


@pytest.mark.parametrize("action", NAMED)
def test_an_order_about_somebody_says_whom(action: Action) -> None:
    assert Desk().refused(action) == naming(action, "name", "rank")


@pytest.mark.parametrize("action", UNNAMED)
def test_an_order_about_nobody_has_no_name(action: Action) -> None:
    assert Desk().refused(action, "gpu1") == naming(action, "gpu1")


def test_an_order_that_is_not_known_is_refused_with_those_that_are() -> None:
    assert Desk().refused("explode") == naming("explode", *Action)


def test_items_are_granted_up_to_an_epoch() -> None:
    desk = Desk()

    desk.order("pause-items")
    assert desk.order("pause-items", "3") == naming(3)
    desk.order("resume-items")

    assert desk.done == [
        ("pause-items", True, None), ("pause-items", False, 3), ("pause-items", False, None)
    ]  # fmt: skip


@pytest.mark.parametrize("action", [Action.CHECKPOINT, Action.END_RUN, Action.EXPEL])
def test_where_there_are_several_runs_an_order_says_which(action: Action) -> None:
    desk = Desk([member(0)])
    desk.runs["beta"] = other = OrderedRun([member(0)])
    name = "0" if action is Action.EXPEL else ""

    assert desk.refused(action, name) == naming(action, "'alpha', 'beta'", "--run")
    assert desk.refused(action, name, "gamma") == naming("'gamma'", "'alpha', 'beta'")
    desk.order(action, name, "beta")

    assert (len(desk.done), len(other.done)) == (0, 1)


def test_an_order_to_a_run_needs_one() -> None:
    desk = Desk()
    desk.runs.clear()

    assert desk.refused("end-run") == naming("end-run", "there is none")


@pytest.mark.parametrize("action", [Action.CHECKPOINT, Action.END_RUN, Action.EXPEL])
@pytest.mark.parametrize("name", ["gamma", "gamma~1"])
def test_an_order_to_a_run_that_is_over_is_told_so(action: Action, name: str) -> None:
    desk = Desk([member(0)])
    desk.over.keep(Run.begin("gamma", join_request()), (), 0.0)

    refused = desk.refused(action, "0" if action is Action.EXPEL else "", name)

    assert refused == naming(f"run {name!r} is over", "'alpha'")


def test_draining_begins_and_ends_by_order() -> None:
    desk = Desk([member(0), member(9, key_name="eyes", role=Role.OBSERVER)])

    assert desk.refused("resume") == "nothing to resume: no operator drains the master"
    assert desk.order("drain").endswith("workers: 1")
    assert (desk.orders.draining, desk.drains) == (True, [True])
    desk.order("resume")

    assert (desk.orders.draining, desk.drains) == (False, [True, False])


def test_names_are_denied_one_after_the_other_and_admitted_again() -> None:
    desk = Desk()

    desk.order("deny", "gpu1")
    desk.order("deny", "gpu2")
    desk.order("admit", "gpu1")

    assert desk.done == [
        ("deny", {"gpu1"}),
        ("deny", {"gpu1", "gpu2"}),
        ("deny", {"gpu2"}),
    ]
    assert desk.orders.denied == {"gpu2"}


def test_who_was_not_denied_by_order_cannot_be_admitted_by_one() -> None:
    assert Desk().refused("admit", "gpu1") == naming("gpu1", "--deny")


def test_what_is_nobody_s_name_is_not_denied() -> None:
    said = Desk().refused("deny", "two words")

    assert said == naming("two words", "printable", "colons", "commas", "spaces")


def test_names_that_are_denied_have_a_limit() -> None:
    desk = Desk()
    for i in range(DENIED_NAMES_MAX):
        desk.order("deny", f"gpu{i}")

    assert desk.refused("deny", "one-more") == naming(DENIED_NAMES_MAX)


@pytest.mark.parametrize("who", ["gpu1", "1"])
def test_members_are_meant_by_the_name_in_their_key_or_by_rank(who: str) -> None:
    other, meant = member(0, key_name="gpu0"), member(1, key_name="gpu1")
    meant.quarantine = []
    desk = Desk([other, meant])

    assert desk.order("release", who) == naming("rank 1 (gpu1 at worker1)")
    assert desk.order("expel", who) == naming("rank 1 (gpu1 at worker1)", "join again")

    assert desk.done == [
        ("release", meant),
        ("expel", meant, "an operator has expelled it"),
    ]


def test_a_number_may_be_a_name_but_not_the_rank_of_another() -> None:
    named, ranked = member(0, key_name="7"), member(7, key_name="gpu7")

    assert Desk([named]).order("expel", "7") == naming("rank 0 (7 at worker0)")
    assert Desk([named, ranked]).refused("expel", "7") == naming(
        "rank 7 (gpu7 at worker7)", "rank 0 (7 at worker0)"
    )


def test_only_who_is_in_quarantine_is_released() -> None:
    desk = Desk([member(0, key_name="gpu0")])

    assert desk.refused("release", "gpu0") == naming("gpu0", "quarantine")


@pytest.mark.parametrize(("who", "meant"), [("gpu1", "key name gpu1"), ("1", "rank 1")])
def test_who_is_not_there_cannot_be_sent_away(who: str, meant: str) -> None:
    assert Desk([member(0)]).refused("expel", who) == naming(meant, "status")


@given(
    action=st.sampled_from([*Action, "explode"]),
    name=st.text(max_size=64).filter(str.isprintable),
)
def test_every_order_is_carried_out_or_refused(action: str, name: str) -> None:
    with suppress(UsageError):
        assert Desk([member(0, key_name="gpu0")]).order(action, name)


def test_an_order_is_read_from_json() -> None:
    content = b'{"action": "expel", "name": "gpu1", "run": "bert"}'

    assert Order.from_json(content) == Order("expel", "gpu1", "bert")
    assert Order.from_json(b'{"action": "drain", "run": null}') == Order("drain")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"drain",
        b"[" * 100_000,
        b"[]",
        b'{"name": "gpu1"}',
        b'{"action": "drain", "when": "now"}',
        b'{"action": "deny", "name": 7}',
        b'{"action": "deny", "name": null}',
        b'{"action": "deny", "name": "two\\nlines"}',
        b'{"action": "end-run", "run": "' + b"x" * 129 + b'"}',
        b'{"action": "\xff"}',
    ],
)
def test_what_is_no_order_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="an order"):
        Order.from_json(content)
