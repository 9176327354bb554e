"""What all peers of a relay have, when another one comes."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from gradwire_protocol.messages.kinds import WORKERS_MAX
from gradwire_protocol.messages.layout import Layout, Tensor
from gradwire_protocol.messages.masters.relaying import Feed, Opened, Reached, Relaying
from gradwire_protocol.messages.modes.mode import parse_mode
from gradwire_server.branches.branch import Branch, RelayedConnection
from gradwire_server.master.branches import Feeds
from gradwire_server.state.run import Run

RANK = WORKERS_MAX + 5
LAYOUT = Layout((Tensor("weights", (10,)),))

RUN = cast(Run, SimpleNamespace(
    name="run", layout=LAYOUT, replica=SimpleNamespace(quantum_exponent=-24)
))  # fmt: skip

FEED = Feed(
    0, 0, 0, {RANK: 10}, observes=False, begins=True, run="run", elements=10,
    mode=parse_mode("sharing(merged=True)"), results=RANK,
)  # fmt: skip


class Said:
    """A link that keeps what it is to send."""

    def __init__(self) -> None:
        self.connection = SimpleNamespace(identity=None)
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)


def test_what_all_have_is_less_when_one_comes_that_lacks_some() -> None:
    said, peers = Said(), []
    branch = Branch(said, Relaying("a:1", "b:1"), 1, lambda c, e: peers.append(c))  # type: ignore[arg-type]
    for number in (3, 4):
        branch.receive(Opened(number, None, None))
    first, second = cast(list[RelayedConnection], peers)
    feeds = Feeds()
    feeds.begin(RUN, branch, FEED)
    feeds.add(first, FEED, begins=True)
    assert feeds.receive_reached(branch, Reached(1, {RANK: 11}, keeps_replica=False))

    feeds.add(second, FEED, begins=False)

    assert branch.reached == {RANK: 10}
    assert said.sent == [replace(FEED, peer=3), replace(FEED, peer=4, begins=False)]
    assert not feeds.receive_reached(branch, Reached(1, {RANK: 12}, keeps_replica=False)), (
        "it was said before the second one was known"
    )
    assert branch.reached == {RANK: 10}
