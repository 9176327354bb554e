"""The standby against a scripted primary: what it says, hears, and does not put up with."""

from collections.abc import Callable
from functools import partial

import pytest

from gradwire_protocol import Connection, Endpoint, UsageError
from gradwire_protocol.messages.admission import (
    Follow,
    Join,
    Promise,
    RefusalCode,
    Refuse,
    Resume,
    Voters,
)
from gradwire_protocol.messages.fields import WORKER_ID_BYTES
from gradwire_protocol.messages.kinds import EndCode
from gradwire_protocol.messages.replicas import Snapshot
from gradwire_server.config import MasterConfig
from gradwire_server.metrics import ServerMetrics
from gradwire_server.runs.runs import Runs
from gradwire_server.standby.standby import ASK_SECONDS, Standby
from support.network import SimulatedNetwork
from support.peer import ScriptedPeer, join_request, resume_of, welcome
from support.runs import GivenBackground

WELCOME = welcome(9, versions={0: 4}, term=3)
CONFIG = MasterConfig(standby_of="primary", takeover_seconds=1.0)


class Rig:
    """A standby, and whoever takes the primary's part."""

    def __init__(self) -> None:
        self.network = SimulatedNetwork(1)
        self.primary = ScriptedPeer(self.network, "primary")
        runs = Runs(CONFIG, ServerMetrics(), GivenBackground())
        self.master = runs.first
        self.endpoint = Endpoint(
            CONFIG.connection,
            random_bytes=self.network.random.randbytes,
            connections_max=CONFIG.connections_max,
        )
        self.dial: Callable[[float], Connection] = partial(self.endpoint.connect, "primary")
        self.standby = Standby(runs, lambda now: self.dial(now), self.network.now)
        self.host = self.network.add("standby", self.endpoint, self.standby)
        self.primary.wait_for(Follow)

    def worker(self, number: int) -> ScriptedPeer:
        """Let a worker come that has lost the primary."""
        peer = ScriptedPeer(self.network, f"worker{number}", dial="standby")
        peer.say(join_of(number, resume_of(number, 0, {0: 4}, 3, term=3)))
        return peer

    def lose_primary(self, *workers: int) -> None:
        """Let the primary name its voters, if any, and then say that it is not in charge."""
        if workers:
            self.primary.say(voters(*workers))
            self.primary.wait_for(Follow, 2)
        self.primary.end(EndCode.STEPPED_DOWN, "gone")
        self.network.kill(self.primary.host)
        self.network.run_for(0.2)


def worker_id(number: int) -> bytes:
    return bytes([number]) * WORKER_ID_BYTES


def join_of(number: int, resume: Resume | None = None) -> Join:
    return join_request(worker_id=worker_id(number), name=f"worker{number}", resume=resume)


def voters(*numbers: int) -> Voters:
    return Voters(1, 3, tuple(map(worker_id, numbers)))


def test_while_it_follows_workers_are_sent_to_the_primary() -> None:
    rig = Rig()

    refused = rig.worker(1).wait_for(Refuse)

    assert (refused.code, refused.master) == (RefusalCode.NOT_IN_CHARGE, "primary")


def test_with_promises_of_more_than_half_it_is_in_charge() -> None:
    rig = Rig()
    rig.lose_primary(1, 2, 3)
    one = rig.worker(1)
    rig.network.run_for(2)
    assert not one.all(Promise)

    two = rig.worker(2)
    asked = [each.wait_for(Promise) for each in (one, two)]
    one.say(Promise(4))
    rig.network.run_for(0.5)
    before = rig.master.terms.in_charge
    two.say(Promise(4))
    rig.network.run(lambda: rig.master.terms.in_charge, seconds=5)

    assert asked == [Promise(4), Promise(4)]
    assert not before
    assert rig.master.terms.term == 4


def test_a_takeover_counts_from_the_last_word_of_the_primary() -> None:
    """Not from when its silence was noticed, which is an idle timeout later."""
    rig = Rig()
    rig.primary.say(voters(1, 2))
    rig.primary.wait_for(Follow, 2)
    rig.network.kill(rig.primary.host)
    rig.network.run(lambda: rig.standby.up is None, seconds=40)

    workers = [rig.worker(number) for number in (1, 2)]
    rig.network.run_for(0.5 * CONFIG.takeover_seconds)

    assert [each.all(Promise) for each in workers] == [[Promise(4)], [Promise(4)]]


def test_who_is_no_voter_does_not_count_nor_who_has_promised_another_term() -> None:
    rig = Rig()
    rig.lose_primary(1, 2, 3)
    peers = [rig.worker(number) for number in (1, 2, 7, 8)]
    for peer in peers:
        peer.wait_for(Promise)

    peers[0].say(Promise(4))
    peers[1].say(Promise(5))
    for stranger in peers[2:]:
        stranger.say(Promise(4))
    rig.network.run_for(ASK_SECONDS + 1)

    assert not rig.master.terms.in_charge
    assert {peer.wait_for(Refuse).code for peer in peers} == {RefusalCode.NOT_IN_CHARGE}


def test_workers_that_are_too_few_are_sent_back_after_a_while() -> None:
    rig = Rig()
    rig.lose_primary(1, 2)

    alone = rig.worker(1)

    assert alone.wait_for(Refuse).code == RefusalCode.NOT_IN_CHARGE
    assert not alone.all(Promise)


def test_who_asks_twice_is_sent_away() -> None:
    rig = Rig()
    rig.lose_primary(1, 2)
    impatient = rig.worker(1)

    impatient.say(join_of(1, resume_of(1, 0, {}, 3)))

    assert "for a second time" in impatient.wait_for_end().reason


@pytest.mark.parametrize("nonsense", [Promise(4), Snapshot(1, bytes(4))])
def test_a_primary_that_talks_nonsense_is_not_followed(
    nonsense: Promise | Snapshot, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig()
    rig.primary.say(WELCOME)

    if isinstance(nonsense, Snapshot):
        rig.primary.link.send_block(nonsense)
        rig.network.turn(rig.primary.host)
    else:
        rig.primary.say(nonsense)

    rig.primary.wait_for_end()
    assert "the primary sent an invalid message" in caplog.text


def test_why_a_primary_has_no_use_for_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    reason = "this master knows of no standby"

    rig.primary.say(Refuse(RefusalCode.ROLE, reason), Refuse(RefusalCode.ROLE, reason))
    rig.network.run_for(1)

    assert caplog.text.count(reason) == 1


def test_an_address_that_leads_nowhere_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    tries: list[float] = []

    def fail(now: float) -> Connection:
        tries.append(now)
        raise UsageError("no such host")

    rig.dial = fail
    rig.lose_primary()
    rig.network.run_for(5)

    assert len(tries) >= 4
    assert caplog.text.count("no such host") == 1


def test_when_it_stops_the_primary_hears_of_it() -> None:
    rig = Rig()

    rig.standby.stop("its machine is needed", rig.network.now)
    rig.network.turn(rig.host)

    assert rig.primary.wait_for_end().code == EndCode.STOPPED
