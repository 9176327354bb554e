"""``POST /api/v1/orders`` takes ``{"action": "expel", "name": "gpu1", "run": "bert"}``.

Answers: 200 ``{"done": TEXT}``; 409 with the reason where the order cannot be carried out; 400 for
what is no order; 401 and 403 for who may not give one.
"""

from collections.abc import Callable
from typing import Final

from aiohttp import web

from gradwire_protocol import UsageError
from gradwire_server.http.access import Access, RequestRefusedError
from gradwire_server.metrics import HttpRefusal
from gradwire_server.runs.orders import Order

ORDERS_PATH: Final = "/api/v1/orders"

Execute = Callable[[str, Order], str]
"""Carries out an order of whom the log names so; returns what it has come to, or raises
`UsageError`."""


def orders_route(access: Access, execute: Execute) -> web.RouteDef:
    """Return the route that takes orders."""

    async def take(request: web.Request) -> web.Response:
        operator = access.operator(request.headers)
        if request.content_type != "application/json":
            raise RequestRefusedError(
                HttpRefusal.BAD_REQUEST, "an order is JSON: Content-Type: application/json"
            )
        try:
            order = Order.from_json(await request.read())
        except ValueError as error:
            raise RequestRefusedError(HttpRefusal.BAD_REQUEST, str(error)) from None
        try:
            return web.json_response({"done": execute(operator, order)})
        except UsageError as error:
            raise RequestRefusedError(HttpRefusal.ORDER, str(error)) from None

    return web.post(ORDERS_PATH, take)
