"""`SimulatedOperator`: who gives the master of a simulated run orders, as those that HTTP takes."""

import json
from typing import Any

import pytest

from gradwire_protocol import UsageError
from gradwire_server.runs.orders import Order
from support.health import with_only_run
from support.training import SimulatedRun


class SimulatedOperator:
    """Gives one order after the other."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run

    def order(self, action: str, name: str = "", run: str | None = None) -> str:
        """Give an order that has to be carried out; return the answer."""
        try:
            return self._run.runs.order("operator", Order(action, name, run), self._run.network.now)
        finally:
            self._run.turn_master()

    def refused(self, action: str, name: str = "", run: str | None = None) -> str:
        """Give an order that has to be refused; return why."""
        with pytest.raises(UsageError) as refused:
            self.order(action, name, run)
        return str(refused.value)

    def status(self) -> dict[str, Any]:
        """Return what the master shows over HTTP."""
        status: dict[str, Any] = json.loads(json.dumps(self._run.runs.status()))
        return with_only_run(status)
