"""Real sockets over an emulated link: loss, bursts, reordering, duplicates, black-outs."""

import pytest

from gradwire_udp import open_socket
from support.driven_side import Side, connected, messages, run_on
from support.emulator import can_have_links, emulated_link
from support.link import Link
from support.namespaces import Machine
from support.waiting import JOB, until

pytestmark = [
    pytest.mark.skipif(
        not can_have_links(), reason="needs the right to make namespaces, and /dev/net/tun"
    ),
]

NETWORKS = {
    "loss": Link(rate=50e6, delay=0.010, loss=0.03),
    "bursts": Link(rate=50e6, delay=0.010, loss=0.05, loss_burst=4.0),
    "reordering": Link(rate=50e6, delay=0.010, jitter=0.005),
    "duplicates": Link(rate=50e6, delay=0.010, duplication=0.3),
    "black-outs": Link(rate=50e6, delay=0.010, blackhole=(0.4, 1.0)),
    "narrow": Link(rate=50e6, delay=0.010, mtu=1_300),
}


def side_in(machine: Machine, *, accepts: bool = False) -> Side:
    """Return an end of a connection that lives in another namespace."""
    sock = machine.inside(lambda: open_socket((machine.address, 0)))
    return Side(accepts=accepts, sock=sock)


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_every_message_arrives_once_and_unchanged(name: str) -> None:
    sent = messages(1, 30, [100, 5_000, 300_000])

    async def test() -> None:
        with emulated_link(NETWORKS[name], seed=7) as (here, there):
            one, other = side_in(here), side_in(there, accepts=True)
            await connected(one, other)
            one.send(sent)
            other.send(sent[:5])
            await until(
                lambda: len(one.delivered) == len(sent), "the last acknowledgement", seconds=JOB
            )
            await until(lambda: len(one.received) == 5, "what went the other way", seconds=JOB)

            assert sorted(other.received) == sorted(sent)
            assert sorted(one.received) == sorted(sent[:5])
            assert one.ended is None
            assert other.ended is None

    run_on("uvloop", test)
