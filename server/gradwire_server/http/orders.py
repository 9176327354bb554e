"""``POST /api/v1/orders`` takes ``{"action": "expel", "name": "gpu1", "run": "bert"}``.

Answers: 200 ``{"done": TEXT}``; 409 with the reason where the order cannot be carried out; 400 for
what is no order; 401 and 403 for who may not give one.
"""

from collections.abc import Callable
from typing import Final

from aiohttp import web

from gradwire_protocol import UsageError
from gradwire_server.http.access import Access
from gradwire_server.runs.orders import Order

ORDERS_PATH: Final = "/api/v1/orders"


def orders_route(access: Access, execute: Callable[[str, Order], str]) -> web.RouteDef:
    """Return the route that takes orders.

    `execute` carries out the order of whom the log names so, and returns what it has come to, or
    raises `UsageError`.
    """

    async def take(request: web.Request) -> web.Response:
        who = access.operator(request.headers)
        # No browser sends it to another server without asking that first.
        if request.content_type != "application/json":
            raise web.HTTPBadRequest(text="an order is JSON: Content-Type: application/json")
        try:
            order = Order.from_json(await request.read())
        except ValueError as error:
            raise web.HTTPBadRequest(text=str(error)) from None
        try:
            return web.json_response({"done": execute(who, order)})
        except UsageError as error:
            raise web.HTTPConflict(text=str(error)) from None

    return web.post(ORDERS_PATH, take)
