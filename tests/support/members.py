"""Members of a roster for tests of one part: their connections lead nowhere."""

from collections.abc import Iterable
from random import Random

from gradwire_protocol import ConnectionConfig, Endpoint, Identity, InOrder, Role
from gradwire_protocol.crypto.keys import KEY_ID_BYTES
from gradwire_protocol.messages.fields import WORKER_ID_BYTES
from gradwire_protocol.messages.link import Link
from gradwire_server.state.roster import Member, Phase, Roster
from support.peer import join_request


def member(
    rank: int,
    phase: Phase = Phase.LIVE,
    *,
    key_name: str | None = None,
    role: Role = Role.WORKER,
    link: Link | None = None,
) -> Member:
    """Return a worker that takes part; what is sent to it is lost.

    With `key_name` it has a key, with this name and `role`.
    """
    if link is None:
        endpoint = Endpoint(ConnectionConfig(), random_bytes=Random(rank).randbytes)
        link = Link(endpoint.connect("nowhere", 0.0))
    if key_name is not None:
        link.connection.identity = Identity(
            key_name, role, bytes([role, rank % 256]).ljust(KEY_ID_BYTES)
        )
    join = join_request(worker_id=bytes([rank % 256]) * WORKER_ID_BYTES, name=f"worker{rank}")
    return Member(rank, join, link, InOrder(1), phase=phase)


def roster_of(members: Iterable[Member]) -> Roster:
    """Return a roster of these."""
    roster = Roster()
    for each in members:
        roster.add_member(each)
    return roster
