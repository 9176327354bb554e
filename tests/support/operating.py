"""`SimulatedOperator`: who gives the master of a simulated run orders, over a sealed connection."""

import json
from typing import Any

from gradwire_protocol import Disconnected, Role
from gradwire_protocol.messages.admission import Refuse
from gradwire_protocol.messages.operating.orders import Order, OrderDone
from support.health import with_only_run
from support.training import SimulatedRun


class SimulatedOperator:
    """An operator who says one thing after the other.

    Parameters
    ----------
    run : SimulatedRun
        One with a run key.
    name : str
        In the operator's key.
    """

    def __init__(self, run: SimulatedRun, name: str = "alice") -> None:
        self.peer = run.dial(name, Role.OPERATOR)

    def order(self, action: str, name: str = "", run: str | None = None) -> str:
        """Give an order that has to be carried out; return the answer."""
        answers = len(self.peer.all(OrderDone))
        self.peer.say(Order(action, name, run))
        return self.peer.wait_for(OrderDone, answers + 1).text

    def refused(self, action: str, name: str = "", run: str | None = None) -> str:
        """Give an order that has to be refused; return why."""
        answers = len(self.peer.all(Refuse))
        self.peer.say(Order(action, name, run))
        refusal = self.peer.wait_for(Refuse, answers + 1)
        assert refusal.code == "order"
        return refusal.reason

    def status(self) -> dict[str, Any]:
        """Return what the master knows."""
        return with_only_run(json.loads(self.order("status")))

    def hang_up(self) -> None:
        """End the connection."""
        self.peer.end(74, "done")

    def wait_for_end(self) -> Disconnected:
        """Return what the master says when it ends the connection."""
        return self.peer.wait_for_end()
