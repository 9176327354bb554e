"""The JSON API below ``/api/v1/``: routes made from typed handlers, and so is its description.

=========================  =============================================================
``overview``               the status of everything
``runs``                   a line for each run, also for those that are over
``runs/NAME``              a run, its workers, and what they do
``runs/NAME/events``       what has happened, ``after`` an entry
``runs/NAME/series``       curves: ``name`` (repeated), ``points``, ``ranks``, ``format``
``runs/NAME/histograms``   the newest ones, of one ``layer`` or of all
``stream``                 all of it as server-sent events, of one ``run`` or of none
``access``                 whether this client may give orders
``orders``                 takes an order: ``action``, ``name``, ``run``
``openapi.json``           the description, for programs
=========================  =============================================================

A name in a path is percent-encoded, so that it may have a slash. Of several runs of a name it is
the newest; those before it that are over are NAME~1, the oldest, NAME~2 and so on.
"""

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from aiohttp import web

from gradwire_server.http.access import Access
from gradwire_server.http.pages import SharedPages
from gradwire_server.runs.orders import Action

PREFIX: Final = "/api/v1/"

TYPES: Final = {
    "json": "application/json",
    "jsonl": "application/jsonl",
    "csv": "text/csv; charset=utf-8",
}
"""Content types by the parameter `format`; all but the first one are downloads."""

DIGITS_MAX: Final = 19
"""Of a whole number in a query."""

Handler = Callable[..., Iterator[bytes]]
"""Makes a document part by part, of parameters that a request names. It yields nothing where there
is no such run, and raises `BadQueryError` when it is called. Its return type is
``Annotated[Iterator[bytes], T]``, where the `TypedDict` T says what the document has."""


class Between(NamedTuple):
    """The bounds of a whole number, both included."""

    lowest: int
    highest: int


class BadQueryError(Exception):
    """The parameters of a request make no sense; the text says why."""


def api_routes(
    handlers: Mapping[str, Handler], runs: Callable[[], Sequence[str]], access: Access
) -> list[web.RouteDef]:
    """Return the routes of documents of runs, and of what describes the API.

    Parameters
    ----------
    handlers : mapping
        By path below `PREFIX`. Each takes a `run` if that is in its path.
    runs : callable
        Returns the names of the runs.
    """
    pages = SharedPages()
    description = json.dumps(openapi(handlers)).encode()

    async def describe(_: web.Request) -> web.Response:
        return web.Response(body=description, content_type="application/json")

    async def tell_access(request: web.Request) -> web.Response:
        return web.json_response({"orders": access.may_order(request.headers)})

    return [
        web.get(PREFIX + "openapi.json", describe),
        web.get(PREFIX + "access", tell_access),
        *(_route(path, handler, runs, pages) for path, handler in handlers.items()),
    ]


def no_run(name: str, runs: Sequence[str]) -> web.HTTPNotFound:
    """Return the answer to a request for a run that there is not."""
    names = ", ".join(map(repr, sorted(runs)))[:500] or "none"
    return web.HTTPNotFound(text=f"there is no run {name[:80]!r}; runs: {names}")


def _route(
    path: str, handler: Handler, runs: Callable[[], Sequence[str]], pages: SharedPages
) -> web.RouteDef:
    kinds = _parameters(handler)

    async def show(request: web.Request) -> web.Response:
        named = dict(request.match_info)
        try:
            given = {
                name: _value(name, kind, request.query.getall(name))
                for name, (kind, _) in kinds.items()
                if name in request.query
            }
            parts = handler(**named, **given)
        except BadQueryError as error:
            raise web.HTTPBadRequest(text=str(error)) from None
        body = await pages.get((path, *named.values(), *given.items()), lambda: parts)
        if not body:
            raise no_run(named["run"], runs())
        kind = given.get("format", "json")
        headers = {"Content-Type": TYPES[kind]}
        if kind != "json":
            headers["Content-Disposition"] = f'attachment; filename="curves.{kind}"'
        return web.Response(body=body, headers=headers)

    return web.get(PREFIX + path, show)


def _parameters(handler: Handler) -> dict[str, tuple[Any, Any]]:
    """Return the types and defaults of what a handler takes besides a run, by name."""
    hints = get_type_hints(handler, include_extras=True)
    parameters = inspect.signature(handler).parameters.values()
    return {
        each.name: (hints[each.name], each.default) for each in parameters if each.name != "run"
    }


def _value(name: str, kind: Any, texts: Sequence[str]) -> Any:
    """Return a parameter of a query, or raise `BadQueryError`."""
    if get_origin(kind) is tuple:
        return tuple(dict.fromkeys(texts))
    text, allowed = texts[-1], get_args(kind)
    if get_origin(kind) is Annotated:
        lowest, highest = allowed[1]
        is_number = text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX
        if not is_number or not lowest <= int(text) <= highest:
            raise BadQueryError(
                f"{name}={text[:80]!r} is no whole number from {lowest} to {highest}"
            )
        return int(text)
    if get_origin(kind) is Literal and text not in allowed:
        raise BadQueryError(f"{name}={text[:80]!r} is none of {', '.join(allowed)}")
    return text


# The description.


def openapi(handlers: Mapping[str, Handler]) -> dict[str, Any]:
    """Return the OpenAPI document of all paths."""
    schemas: dict[str, Any] = {}
    document = partial(_schema, schemas=schemas)
    text = {"type": "string"}
    paths = {PREFIX + path: {"get": _operation(path, h, schemas)} for path, h in handlers.items()}
    for path, summary, answer in (
        ("overview", "The status of everything.", {"type": "object"}),
        ("access", "Whether this client may give orders.", _object({"orders": document(bool)})),
        ("openapi.json", "This document.", {"type": "object"}),
    ):
        paths[PREFIX + path] = {"get": _answers(summary, answer)}
    run = {"name": "run", "in": "query", "schema": text}
    paths[PREFIX + "stream"] = {
        "get": {
            **_answers(
                "Server-sent events: summary, run, events, over.", text, "text/event-stream"
            ),
            "parameters": [run],
        }
    }
    order = _object({"action": {"enum": list(Action)}, "name": text, "run": text}, ["action"])
    paths[PREFIX + "orders"] = {
        "post": {
            **_answers("Carry out an order.", _object({"done": text})),
            "requestBody": {"required": True, "content": {TYPES["json"]: {"schema": order}}},
        }
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "gradwire", "version": PREFIX.split("/")[2]},
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(path: str, handler: Handler, schemas: dict[str, Any]) -> dict[str, Any]:
    hints = get_type_hints(handler, include_extras=True)
    run = {"name": "run", "in": "path", "required": True, "schema": {"type": "string"}}
    query = [
        {"name": name, "in": "query", "schema": {**_schema(kind, schemas), "default": default}}
        for name, (kind, default) in _parameters(handler).items()
    ]
    answer = get_args(hints["return"])[1]
    text = " ".join((inspect.getdoc(handler) or "").split())
    parameters = [run, *query] if "{run}" in path else query
    return {**_answers(text, _schema(answer, schemas)), "parameters": parameters}


def _answers(summary: str, schema: dict[str, Any], kind: str = TYPES["json"]) -> dict[str, Any]:
    content = {kind: {"schema": schema}}
    return {"summary": summary, "responses": {"200": {"description": "OK", "content": content}}}


def _object(properties: dict[str, Any], required: Sequence[str] | None = None) -> dict[str, Any]:
    wanted = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": wanted}


def _schema(kind: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of a type; those of classes go into `schemas`."""
    origin, arguments = get_origin(kind), get_args(kind)
    if is_typeddict(kind):
        if kind.__name__ not in schemas:
            hints = get_type_hints(kind)
            schemas[kind.__name__] = {}
            properties = {name: _schema(each, schemas) for name, each in hints.items()}
            schemas[kind.__name__] = {"description": kind.__doc__, **_object(properties)}
        return {"$ref": f"#/components/schemas/{kind.__name__}"}
    if origin is UnionType:
        return {"anyOf": [_schema(each, schemas) for each in arguments]}
    if origin in (list, tuple):
        return {"type": "array", "items": _schema(arguments[0], schemas)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(arguments[1], schemas)}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is Annotated:
        return {"type": "integer", "minimum": arguments[1][0], "maximum": arguments[1][1]}
    return {"type": NAMES[kind]} if kind in NAMES else {}


NAMES: Final = {
    str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null",
}  # fmt: skip
"""Of types, in JSON Schema; others can be anything."""
