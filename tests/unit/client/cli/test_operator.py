"""An operator's order: what it answers to what the master says, and whom it may not wait for."""

import pytest

from gradwire.cli.operate import Operator
from gradwire.errors import (
    ConnectionLostError,
    GradwireError,
    ProtocolError,
)
from gradwire.worker.dialing import UDP, Dialing, Way
from gradwire_protocol import CloseCode, ConnectionConfig, Endpoint
from gradwire_protocol.messages.kinds import CONTROL_STREAM, EndCode
from gradwire_protocol.messages.link import Control
from gradwire_protocol.messages.orders import Order, OrderDone
from gradwire_protocol.messages.updates import Finish
from support.network import Link, SimulatedNetwork
from support.peer import ScriptedPeer
from support.wording import naming

ORDER = Order("deny", "gpu1")
TIMEOUT_SECONDS = 5.0


class Talk:
    """An operator and what stands in for a master."""

    def __init__(self, *, answers: bool = True) -> None:
        self.network = SimulatedNetwork(1, Link())
        if answers:
            self.master = ScriptedPeer(self.network, "master")
        self.operator = Operator(ORDER, "master")
        config = ConnectionConfig(connect_timeout_seconds=1.0)
        self.endpoint = Endpoint(config, random_bytes=self.network.random.randbytes)
        ways = [Way(UDP, lambda now: self.endpoint.connect("master", now))]
        self.operator.dial(Dialing(ways, "master", TIMEOUT_SECONDS), self.network.now)
        self.host = self.network.add("operator", self.endpoint, self.operator)
        if answers:
            self.master.wait_for(Order)

    def say(self, *records: Control) -> None:
        self.master.say(*records)
        self.network.run_for(1.0)

    def error(self) -> GradwireError:
        with pytest.raises(GradwireError) as raised:
            self.operator.wait(0.0)
        return raised.value


def test_only_the_first_answer_counts() -> None:
    talk = Talk()

    talk.say(OrderDone("first"), OrderDone("second"), Finish(0))

    assert talk.operator.wait(0.0) == "first"
    assert talk.master.wait_for_end().code == EndCode.DONE


def test_what_is_no_answer_is_an_error() -> None:
    talk = Talk()

    talk.say(Finish(0))

    error = talk.error()
    assert isinstance(error, ProtocolError)
    assert str(error) == naming("the master at master", "Finish")
    assert talk.master.wait_for_end().code == CloseCode.INVALID_MESSAGE


def test_what_is_no_message_is_an_error() -> None:
    talk = Talk()

    talk.master.say_anything(CONTROL_STREAM, 0, 99, b"?")
    talk.network.run_for(1.0)

    assert str(talk.error()) == naming("the master at master", "kind 99")


def test_a_connection_that_ends_without_an_answer_is_an_error() -> None:
    talk = Talk()

    talk.master.end(EndCode.STOPPED, "the master was stopped")
    talk.network.run_for(1.0)

    error = talk.error()
    assert isinstance(error, ConnectionLostError)
    assert str(error) == naming("the master at master", "the master was stopped")
