"""`Api`: which document a request is for, and orders.

====================================  =========================================================
``GET /api/v1/overview``              the daemon, and a line for each run
``GET /api/v1/runs/NAME``             a run, its workers, and what they do
``GET /api/v1/runs/NAME/logged``      names of series, also of a run that is over
``GET /api/v1/runs/NAME/series``      curves: ``name`` (repeated), ``points``, ``ranks``
``GET /api/v1/runs/NAME/histograms``  of one ``layer``, the newest or with ``history=1``
``GET /api/v1/runs/NAME/events``      what has happened, ``after`` an entry
``GET /api/v1/stream``                the same as server-sent events, of one ``run`` or of none
``GET /api/v1/access``                whether this client may give orders
``POST /api/v1/orders``               an order: ``action``, ``name``, ``run``
``GET /api/v1/openapi.json``          all of this, for programs
====================================  =========================================================

A name in a path is percent-encoded, so that it may have a slash.
"""

import json
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from importlib.resources import files
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import parse_qs, unquote

from gradwire_protocol.messages.admission import Refuse
from gradwire_protocol.messages.kinds import RANK_END
from gradwire_protocol.messages.operating.orders import Order, OrderDone
from gradwire_server.http.api.documents import NAMES_MAX, POINTS, POINTS_MAX, Documents
from gradwire_server.http.api.stream import Streams
from gradwire_server.metrics import HttpRefusal

PREFIX: Final = "/api/v1/"

STREAM_PATH: Final = PREFIX + "stream"
ACCESS_PATH: Final = PREFIX + "access"
ORDERS_PATH: Final = PREFIX + "orders"

OPERATOR: Final = "with the HTTP operator's token"
OPERATOR_HERE: Final = "on this machine, over HTTP"
"""How the log names who gives an order."""

OPENAPI: Final = (files(__package__) / "openapi.json").read_bytes()

TOKEN_PARAMETERS: Final = frozenset({"token", "access_token", "bearer", "key"})
"""Where people might put a token; either case."""

Query: TypeAlias = Mapping[str, Sequence[str]]
"""The parameters of a request: a name may be given several times."""

PARAMETERS_MAX: Final = 64


class RefusedRequestError(Exception):
    """A request cannot be answered."""

    def __init__(self, reason: HttpRefusal, text: str = "") -> None:
        super().__init__(text)
        self.reason = reason
        self.text = text
        """What is wrong with it; empty where the reason says it."""


class Page(NamedTuple):
    """A document that was asked for."""

    key: Hashable
    """The same for requests that can share it."""
    parts: Callable[[], Iterator[bytes]]


class Api:
    """Answers requests.

    Parameters
    ----------
    order : callable
        Carries out an order of the operator with this name.
    takes_keyless_orders : callable
        See the property.
    """

    def __init__(
        self,
        documents: Documents,
        streams: Streams,
        order: Callable[[str, Order], OrderDone | Refuse],
        takes_keyless_orders: Callable[[], bool],
    ) -> None:
        self.documents: Final = documents
        self.streams: Final = streams
        self._order = order
        self._takes_keyless_orders = takes_keyless_orders

    @property
    def takes_keyless_orders(self) -> bool:
        """Whether anyone on this machine may give orders: there are no keys."""
        return self._takes_keyless_orders()

    def page(self, raw_path: str, query: Query) -> Page:
        """Return the document that a path and its query name, or raise `RefusedRequestError`."""
        parts = [unquote(part) for part in raw_path.removeprefix(PREFIX).split("/")]
        match parts:
            case ["overview"]:
                return Page("overview", partial(_whole, self.documents.overview))
            case ["openapi.json"]:
                return Page("openapi", lambda: iter((OPENAPI,)))
            case ["runs", run]:
                self.check_run(run)
                return Page(("run", run), partial(self.documents.run_parts, run))
            case ["runs", run, "events"]:
                self.check_run(run)
                after = integer_of(query, "after", 0, 0, 2**53)
                return Page(
                    ("events", run, after), partial(self.documents.events_parts, run, after)
                )
            case ["runs", run, "logged"]:
                self._check_logged(run)
                return Page(("logged", run), partial(self.documents.logged_parts, run))
            case ["runs", run, "series"]:
                return self._series(run, query)
            case ["runs", run, "histograms"]:
                return self._histograms(run, query)
        raise RefusedRequestError(HttpRefusal.NOT_FOUND)

    def check_run(self, run: str) -> None:
        """Raise `RefusedRequestError` if there is no such run in progress."""
        if not self.documents.has(run):
            names = ", ".join(map(repr, sorted(self.documents.runs))) or "none"
            raise RefusedRequestError(
                HttpRefusal.NOT_FOUND, f"no run {run[:80]!r} is in progress; runs: {names}"
            )

    def _check_logged(self, run: str) -> None:
        """Raise `RefusedRequestError` if nothing is here that workers of the run have logged."""
        if not self.documents.has_series(run):
            self.check_run(run)

    def _series(self, run: str, query: Query) -> Page:
        names = tuple(dict.fromkeys(query.get("name", ())))
        if not 0 < len(names) <= NAMES_MAX:
            raise RefusedRequestError(
                HttpRefusal.BAD_REQUEST,
                f"say which series, 1 to {NAMES_MAX}, as name=loss&name=accuracy; the document of "
                "the run lists them",
            )
        self._check_logged(run)
        points = integer_of(query, "points", POINTS, 1, POINTS_MAX)
        ranks = ranks_of(query)
        return Page(
            ("series", run, names, points, ranks),
            partial(self.documents.series_parts, run, names, points, ranks),
        )

    def _histograms(self, run: str, query: Query) -> Page:
        self._check_logged(run)
        layer = query["layer"][-1] if "layer" in query else None
        history = bool(integer_of(query, "history", 0, 0, 1))
        return Page(
            ("histograms", run, layer, history),
            partial(self.documents.histograms_parts, run, layer, history=history),
        )

    def carry_out(self, body: bytes, operator: str) -> Mapping[str, Any]:
        """Carry out an order; return what the answer says, or raise `RefusedRequestError`."""
        answer = self._order(operator, order_in(body))
        if isinstance(answer, Refuse):
            raise RefusedRequestError(HttpRefusal.ORDER, answer.reason)
        return {"done": answer.text}


def order_in(body: bytes) -> Order:
    """Return the order that a request has, or raise `RefusedRequestError`."""
    try:
        said = json.loads(body)
        # The record has the names of fields, and checks them.
        return Order.from_plain(
            {"name": "", "run": None, **said} if isinstance(said, dict) else said
        )
    except (ValueError, RecursionError) as error:
        raise RefusedRequestError(
            HttpRefusal.BAD_REQUEST,
            f'an order is JSON like {{"action": "expel", "name": "gpu1", "run": "bert"}}; this is '
            f"not: {str(error)[:300]}",
        ) from None


def query_in(text: str) -> Query:
    """Return the parameters of a request, percent-encoded, or raise `RefusedRequestError`.

    A token is none: URLs end up in logs and histories.
    """
    try:
        query = parse_qs(text, keep_blank_values=True, max_num_fields=PARAMETERS_MAX)
    except ValueError:
        raise RefusedRequestError(
            HttpRefusal.BAD_REQUEST, f"a URL has at most {PARAMETERS_MAX} parameters"
        ) from None
    found = TOKEN_PARAMETERS & {name.lower() for name in query}
    if found:
        raise RefusedRequestError(
            HttpRefusal.BAD_REQUEST,
            f"a URL must not have a token ({min(found)}=): logs and histories keep URLs. Send it "
            "as 'Authorization: Bearer TOKEN', and take another token from now on",
        )
    return query


def integer_of(query: Query, name: str, default: int, lowest: int, highest: int) -> int:
    """Return a whole number of a query, or raise `RefusedRequestError`."""
    text = query.get(name, [str(default)])[-1]
    if text.isdecimal() and len(text) < 20 and lowest <= int(text) <= highest:
        return int(text)
    raise RefusedRequestError(
        HttpRefusal.BAD_REQUEST,
        f"{name}={text[:80]!r} is no whole number from {lowest} to {highest}",
    )


def ranks_of(query: Query) -> frozenset[int] | None:
    """Return the ranks that a query names, or raise `RefusedRequestError`; None for the first."""
    if "ranks" not in query:
        return None
    text = query["ranks"][-1]
    try:
        ranks = frozenset(int(each) for each in text.split(",") if each)
    except ValueError:
        ranks = frozenset({-1})
    if any(not 0 <= rank < RANK_END for rank in ranks):
        raise RefusedRequestError(
            HttpRefusal.BAD_REQUEST, f"ranks={text[:80]!r} are no ranks, as in ranks=0,3"
        )
    return ranks


def _whole(make: Callable[..., Any], *arguments: Any) -> Iterator[bytes]:
    yield json.dumps(make(*arguments)).encode()
