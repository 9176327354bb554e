"""Orders over HTTP: who may give them, what becomes of them, and what is no order."""

import json
import logging
from collections.abc import Callable

import pytest

from gradwire_protocol.messages.admission import RefusalCode, Refuse, Welcome
from gradwire_protocol.messages.kinds import EndCode
from gradwire_protocol.messages.operating.orders import Action
from gradwire_protocol.messages.updates import Leave
from gradwire_protocol.messages.work import StopTraining
from gradwire_server.http.access import Access, Token
from gradwire_server.http.api.api import OPERATOR, OPERATOR_HERE
from gradwire_server.metrics import HttpRefusal
from support.api_side import Watched, fetch, give_order, order_request, send, watching
from support.http_side import Visitor
from support.peer import ScriptedPeer
from support.waiting import until
from support.wording import naming

VIEWER, CHIEF = "viewers-token-viewers", "operators-token-operators"
LOCKED = Access(token=Token(VIEWER.encode()), operator_token=Token(CHIEF.encode()))
AS_VIEWER, AS_CHIEF = f"Authorization: Bearer {VIEWER}", f"Authorization: Bearer {CHIEF}"
STATUS = b'{"action": "status"}'


def two_workers(*, keyless: bool = True) -> tuple[Watched, ScriptedPeer, ScriptedPeer]:
    watched = Watched()
    watched.daemon.runs._newcomers.takes_keyless_orders = keyless
    peers = [watched.daemon.enter(name, "bert") for name in "ab"]
    return watched, peers[0], peers[1]


# What becomes of them.


async def test_a_worker_that_is_expelled_is_gone_with_the_answer() -> None:
    watched, _, other = two_workers()
    async with watching(watched) as side:
        answer = await give_order(side, "expel", name="1")
        left = (await fetch(side, "runs/bert")).document["workers"]

    assert answer.status == 200
    assert answer.document == {"done": naming("rank 1 (b)", "join again")}
    assert [worker["rank"] for worker in left] == [0]
    end = other.wait_for_end()
    assert (end.code, end.reason) == (EndCode.EXPELLED, naming(f"operator {OPERATOR_HERE}"))


async def test_what_an_order_does_is_sent_at_once_and_not_with_the_next_datagram() -> None:
    watched, first, _ = two_workers()
    async with watching(watched) as side:
        before = watched.daemon.network.counts["sent"]
        await give_order(side, "stop-training")

    assert watched.daemon.network.counts["sent"] > before
    first.wait_for(StopTraining)


def quarantine(watched: Watched) -> None:
    found = watched.daemon.runs.in_progress["bert"].roster.at(1)
    assert found is not None
    found.quarantine = []


@pytest.mark.parametrize(
    ("action", "name", "prepare", "done"),
    [
        (Action.DRAIN, "", None, ("workers", 2)),
        (Action.DENY, "gpu7", None, ("gpu7", "--deny gpu7")),
        (Action.RELEASE, "1", quarantine, ("rank 1 (b)",)),
        (Action.EXPEL, "0", None, ("rank 0 (a)",)),
        (Action.STOP_TRAINING, "", None, ("workers", 2)),
        (Action.PAUSE_ITEMS, "", None, ("items",)),
        (Action.RESUME_ITEMS, "", None, ("items",)),
        (Action.END_RUN, "", None, ("bert",)),
    ],
)
async def test_each_order_is_carried_out(
    action: Action,
    name: str,
    prepare: Callable[[Watched], None] | None,
    done: tuple[object, ...],
) -> None:
    watched, _, _ = two_workers()
    if prepare is not None:
        prepare(watched)
    async with watching(watched) as side:
        answer = await give_order(side, action, name=name, run="bert")

    assert (answer.status, answer.document) == (200, {"done": naming(*done)})
    assert watched.daemon.runs.metrics.registry.get_sample_value("gradwire_orders_total") == 1


async def test_orders_that_take_back_others_are_carried_out() -> None:
    watched, _, _ = two_workers()
    async with watching(watched) as side:
        answers = [
            await give_order(side, action, name=name)
            for action, name in (
                ("drain", ""),
                ("resume", ""),
                ("deny", "gpu7"),
                ("admit", "gpu7"),
            )
        ]
        overview = (await fetch(side, "overview")).document

    assert [answer.status for answer in answers] == [200] * 4
    assert (overview["draining"], overview["denied"]) == (False, [])


async def test_a_status_is_json_in_the_answer() -> None:
    watched, _, _ = two_workers()
    async with watching(watched) as side:
        answer = await give_order(side, "status")

    [run] = json.loads(answer.document["done"])["runs"]
    assert run["name"] == "bert"


@pytest.mark.parametrize(
    ("action", "name", "run", "named"),
    [
        ("checkpoint", "", "bert", ("checkpoints",)),
        ("expel", "7", "bert", ("rank 7",)),
        ("expel", "", "bert", ("expel", "name")),
        ("release", "1", "bert", ("quarantine",)),
        ("resume", "", None, ("nothing to resume",)),
        ("admit", "gpu7", None, ("gpu7",)),
        ("explode", "", None, ("'explode'", *Action)),
        ("end-run", "", "gpt", ("'gpt'", "'bert'")),
        ("status", "x", None, ("'x'",)),
    ],
)
async def test_an_order_that_cannot_be_carried_out_says_why(
    action: str, name: str, run: str | None, named: tuple[object, ...]
) -> None:
    watched, _, _ = two_workers()
    async with watching(watched) as side:
        answer = await give_order(side, action, name=name, run=run)

    assert (answer.status, answer.text) == (409, naming(*named))
    assert side.refusals == {HttpRefusal.ORDER: 1}
    assert watched.daemon.names == ["bert"]


async def test_after_a_drain_nobody_is_let_in_and_the_master_stops_with_the_last_worker() -> None:
    watched, first, second = two_workers()
    async with watching(watched) as side:
        await give_order(side, "drain")
    refused = watched.daemon.ask("c", "bert").wait_for(Refuse)
    for peer in (first, second):
        peer.say(Leave(0, "done"))
        peer.wait_for_end()
    watched.daemon.until(lambda: bool(watched.daemon.drained))

    assert refused.code == RefusalCode.DRAINING
    assert watched.daemon.drained[0] == naming(f"operator {OPERATOR_HERE}", "drained")


async def test_the_log_names_who_has_given_an_order_and_how(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watched, _, _ = two_workers()
    caplog.set_level(logging.INFO, "gradwire.master")
    async with watching(watched, access=LOCKED) as side:
        await give_order(side, "deny", AS_CHIEF, name="gpu7")
        await give_order(side, "expel", AS_CHIEF, name="9")
    async with watching(watched) as side:
        await give_order(side, "admit", name="gpu7")

    assert [r.message for r in caplog.records if "order" in r.message] == [
        naming(f"operator {OPERATOR}", "deny gpu7"),
        naming("refused", f"operator {OPERATOR}", "expel 9"),
        naming(f"operator {OPERATOR_HERE}", "admit gpu7"),
    ]
    assert CHIEF not in caplog.text


# Who may give them.


@pytest.mark.parametrize(
    ("access", "keyless", "headers", "status", "may"),
    [
        (LOCKED, True, [AS_CHIEF], 200, True),
        (LOCKED, False, [AS_CHIEF], 200, True),
        (LOCKED, True, [AS_VIEWER], 403, False),
        (LOCKED, True, [], 401, None),
        (LOCKED, True, ["Authorization: Bearer wrong-token-wrong-token"], 401, None),
        (LOCKED, True, [f"Authorization: Basic {CHIEF}"], 401, None),
        (Access(operator_token=LOCKED.operator_token), True, [AS_CHIEF], 200, True),
        (Access(operator_token=LOCKED.operator_token), True, [AS_VIEWER], 401, None),
        # Without a token of operators, only where there are no keys, and nobody else comes here.
        (Access(), True, [], 200, True),
        (Access(), False, [], 403, False),
        (Access(token=LOCKED.token), True, [AS_VIEWER], 403, False),
        (Access(token=LOCKED.token), False, [AS_VIEWER], 403, False),
    ],
)
async def test_who_may_give_orders(
    access: Access, keyless: bool, headers: list[str], status: int, may: bool | None
) -> None:
    watched, _, _ = two_workers(keyless=keyless)
    async with watching(watched, access=access) as side:
        answer = await give_order(side, "expel", *headers, name="1")
        asked = await fetch(side, "access", *headers)

    assert answer.status == status
    assert (asked.document if may is not None else asked.status) == (
        401 if may is None else {"orders": may}
    )
    assert len(watched.run("bert").relay.versions) == 0
    workers = watched.daemon.runs.in_progress["bert"].roster.workers
    assert len(workers) == (1 if status == 200 else 2)
    if status == 403:
        assert answer.text == naming("--http-operator-token-file", "Authorization: Bearer TOKEN")
        assert side.refusals == {HttpRefusal.NO_OPERATOR: 1}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (["Origin: http://127.0.0.1"], 200),
        (["Origin: http://127.0.0.1", "Sec-Fetch-Site: same-origin"], 200),
        (["Sec-Fetch-Site: none"], 200),
        (["Origin: http://elsewhere.example"], 403),
        (["Origin: http://127.0.0.1:81"], 403),
        (["Origin: null"], 403),
        (["Origin: "], 403),
        (["Sec-Fetch-Site: cross-site"], 403),
        (["Sec-Fetch-Site: same-site"], 403),
        (["Origin: http://127.0.0.1", "Sec-Fetch-Site: cross-site"], 403),
    ],
)
@pytest.mark.parametrize("access", [Access(), LOCKED], ids=["open", "token"])
async def test_a_page_of_another_host_gives_no_orders(
    access: Access, headers: list[str], status: int
) -> None:
    watched, _, _ = two_workers()
    async with watching(watched, access=access) as side:
        given = [*headers, *([AS_CHIEF] if access is LOCKED else [])]
        answer = await give_order(side, "status", *given)
        asked = (await fetch(side, "access", *given)).document

    assert answer.status == status
    assert asked == {"orders": status == 200}


async def test_a_name_of_somebody_else_for_loopback_gives_no_orders() -> None:
    watched, _, _ = two_workers()
    async with watching(watched) as side:
        data = order_request(STATUS).replace(b"Host: 127.0.0.1", b"Host: rebound.example")
        answer = await send(side, data)

    assert answer.status == 403
    assert side.refusals == {HttpRefusal.CLOSED: 1}


@pytest.mark.parametrize(
    "kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; a=b"]
)
async def test_what_a_form_of_any_page_can_send_is_no_order(kind: str | None) -> None:
    watched, _, _ = two_workers()
    async with watching(watched) as side:
        answer = await send(side, order_request(STATUS, kind=kind))

    assert answer.status == 403
    assert side.refusals == {HttpRefusal.NO_OPERATOR: 1}


async def test_the_kind_of_the_content_may_name_its_characters() -> None:
    watched, _, _ = two_workers()
    async with watching(watched) as side:
        answer = await send(side, order_request(STATUS, kind="application/json; charset=utf-8"))

    assert answer.status == 200


# What is no order.


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"", ()),
        (b"status", ()),
        (b'{"action": "status"', ()),
        (b'\xff\xfe{"action": "status"}', ()),
        (b'{"action": "\xff"}', ()),
        (b"null", ("map",)),
        (b"[]", ("map",)),
        (b'"status"', ("map",)),
        (b"{}", ("action",)),
        (b'{"action": 7}', ("action",)),
        (b'{"action": null}', ("action",)),
        (b'{"action": ["status"]}', ("action",)),
        (b'{"action": "status", "name": null}', ("name",)),
        (b'{"action": "status", "run": 1}', ("run",)),
        (b'{"action": "status", "nam": "x"}', ("nam",)),
        (b'{"action": "' + b"x" * 65 + b'"}', ("action", 64)),
        (b'{"action": "expel", "name": "' + b"x" * 65 + b'"}', ("name", 64)),
        (b'{"action": "expel", "name": "a\\nb"}', ("name",)),
        (b'{"action": "expel", "name": "\\ud800"}', ("name",)),
        (b'{"action": "expel", "name": "\\u0000"}', ("name",)),
        (b'{"action": "end-run", "run": "a\\u001b[2J"}', ("run",)),
        (b'{"action": NaN}', ("action",)),
        (b'{"action": ' + b"9" * 5_000 + b"}", ()),
        (b"[" * 10_000, ()),
        (b'{"action": ' * 1_000, ()),
    ],
)
async def test_what_is_no_order_is_told_what_one_is(body: bytes, named: tuple[object, ...]) -> None:
    watched, _, _ = two_workers()
    async with watching(watched) as side:
        answer = await send(side, order_request(body))

    assert (answer.status, answer.text) == (400, naming('"action"', "JSON", *named))
    assert len(answer.text) < 600
    assert answer.text.rstrip("\n").isprintable()
    assert side.refusals == {HttpRefusal.BAD_REQUEST: 1}
    assert len(watched.daemon.runs.in_progress["bert"].roster.workers) == 2


async def test_an_order_that_is_too_long_is_not_read() -> None:
    watched, _, _ = two_workers()
    async with watching(watched) as side:
        visitor = await Visitor.come(side)
        visitor.send(order_request(b'{"action": "' + b"x" * 10_000_000))
        heard = await visitor.hear()
        visitor.go()
        await until(lambda: side.server.connections == 0, "it to be closed")

    assert heard == b""
    assert side.refusals == {HttpRefusal.TOO_LARGE: 1}


@pytest.mark.parametrize("begun", [b"", b'{"act'])
async def test_who_goes_before_the_order_is_whole_has_ordered_nothing_and_is_no_error(
    begun: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    watched, _, _ = two_workers()
    async with watching(watched) as side:
        visitor = await Visitor.come(side)
        head = order_request(b"x" * 100).removesuffix(b"x" * 100)
        visitor.send(head + begun)
        await until(lambda: side.server.connections == 1, "the connection")
        await fetch(side, "/healthz")
        visitor.go()
        await until(lambda: side.server.connections == 0, "it to be gone")

    assert [r.message for r in caplog.records if r.levelno >= logging.WARNING] == []
    orders = watched.daemon.runs.metrics.registry.get_sample_value("gradwire_orders_total")
    assert orders == 0


async def test_an_error_while_an_order_is_carried_out_is_one_of_its_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched, _, _ = two_workers()
    watched.daemon.enter("c", "gpt")

    def fail(*_: object) -> str:
        raise LookupError("nobody has thought of this")

    monkeypatch.setattr(watched.daemon.runs.first, "end_run", fail)
    async with watching(watched) as side:
        answer = await give_order(side, "end-run", run="bert")

    assert (answer.status, answer.text) == (409, naming("internal error"))
    assert [run for run, _ in watched.daemon.failed] == ["bert"]
    assert watched.daemon.names == ["gpt"]


async def test_a_run_of_the_same_name_begins_after_an_order_to_end_it() -> None:
    watched, first, _ = two_workers()
    async with watching(watched) as side:
        await give_order(side, "end-run")
        gone = await fetch(side, "runs/bert")
        first.wait_for_end()
        again = watched.daemon.enter("c", "bert")
        there = await fetch(side, "runs/bert")

    assert (gone.status, there.status) == (404, 200)
    assert again.all(Welcome)[0].founder
