"""What has to be true of connections at every moment, whatever the network does to them.

`Invariants` watches the endpoints of a `SimulatedNetwork`: all that goes in and comes out. From
that it keeps a plain account of its own: what was sent and what arrived, what the applications said
and heard. After every turn of a host it compares the connections with it:

- I1: a message is delivered at most once, with the bytes that were handed over, and its sender
  hears of that at most once and not before.
- I2: once everything gets through again, every message arrives; see `check_all_arrived`.
- I4: the bytes in flight are those of the packets in flight. Likewise the bytes queued; and a
  fragment of which nothing is known is in a packet in flight.
- I5: no packet number is used twice; and over all connections, no key with the same number.
- I6: nobody has more message bytes under way than it was given credit for.
- I7: fragments leave while the window has room for them, or as the few packets of a probe; and an
  address that has not proved itself gets no more than what came from there.
- I8: whatever is outstanding has a timer, and the endpoint knows of it.
- I9: nothing is acknowledged but packets that arrived.

I3, that no update is lost or invented, is what `support.ledger` keeps its account for.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final
from zlib import crc32

import numpy as np

from gradwire_protocol import (
    Address,
    Connection,
    Endpoint,
    Event,
    MessageDelivered,
    MessageReceived,
    State,
)
from gradwire_protocol.connection.sender import Sender
from gradwire_protocol.connection.train import Train
from gradwire_protocol.delivery.outgoing import SENT
from gradwire_protocol.limits import AMPLIFICATION_MAX, PACKET_HEADER_BYTES
from gradwire_protocol.recovery.sent_packets import Fate
from gradwire_protocol.wire.packets import INIT, TRANSPORT, TRANSPORT_HEADER
from support import insides
from support.accounts import Account
from support.network import Host, SimulatedNetwork

OVERDUE_TURNS_MAX: Final = 10
"""More turns in a row do not leave anything undone."""


class Invariants:
    """Checks the connections of a host after each of its turns.

    Parameters
    ----------
    network : SimulatedNetwork
        Before its hosts are connected to each other.
    """

    def __init__(self, network: SimulatedNetwork) -> None:
        self.network = network
        self.turns = 0
        """How many were checked."""
        self._ends: dict[Connection, Account] = {}
        self._by_session: dict[int, Account] = {}
        self.used = set[tuple[bytes, int]]()
        """Keys and the packet numbers they were used with."""
        self._touched: dict[Host, dict[Account, None]] = {}
        """Connections to look at after the turn."""
        self._strangers: dict[Host, Counter[Address]] = {}
        """How much may be said to an address without a connection."""
        network.after_turn = self.check

    def check(self, host: Host) -> None:
        """Look at a host that has had its turn."""
        if host not in self._touched:
            self._watch(host)
        self.turns += 1
        for end in self._touched[host]:
            if end.was_open:
                end.note_timeouts()
                _check_reassembly(end.connection)
                _check_in_flight(end.sender)
            if end.connection.state is State.OPEN:
                _check_queue(end.sender)
                _check_progress(host.endpoint, end.connection)
            _check_timer(host, end, self.network.now + host.ahead)
        self._touched[host].clear()

    def check_all_arrived(self) -> None:
        """Check that whatever was said over connections that are still open was heard."""
        for end in self._ends.values():
            peer = self._peer_of(end)
            if peer is None or {end.connection.state, peer.connection.state} != {State.OPEN}:
                continue
            missing = end.said.keys() - peer.heard
            assert not missing, f"I2: {sorted(missing)} of {len(end.said)} messages are missing"
            unknown = end.said.keys() - end.told_of
            assert not unknown, f"I2: nobody was told that {sorted(unknown)} arrived"

    def accounts(self) -> Iterable[Account]:
        """Return what is known of every end of a connection."""
        return self._ends.values()

    # What goes in and comes out.

    def _watch(self, host: Host) -> None:
        """Be told of whatever an endpoint hears and says."""
        self._touched[host] = {}
        self._strangers[host] = Counter()
        endpoint = host.endpoint
        receive, handle_timer = endpoint.receive, endpoint.handle_timer
        next_event, next_train = endpoint.next_event, endpoint.next_train

        def heard_receive(
            view: memoryview, segment: int, address: Address, ecn: int, now: float
        ) -> None:
            starts = range(0, len(view), segment or 1)
            datagrams = [bytes(view[at : at + segment]) for at in starts]
            receive(view, segment, address, ecn, now)
            for datagram in datagrams:
                self._on_datagram(host, datagram, address)

        def heard_timer(now: float) -> None:
            handle_timer(now)
            for connection in insides.reporting(endpoint):
                self._end_of(host, connection)

        def heard_event() -> tuple[Connection, Event] | None:
            item = next_event()
            if item is not None:
                self._on_event(self._end_of(host, item[0]), item[1])
            return item

        def heard_train(now: float) -> Train | None:
            train = next_train(now)
            if train is not None:
                self._on_train(host, train)
            return train

        endpoint.receive = heard_receive  # type: ignore[method-assign]
        endpoint.handle_timer = heard_timer  # type: ignore[method-assign]
        endpoint.next_event = heard_event  # type: ignore[method-assign]
        endpoint.next_train = heard_train  # type: ignore[method-assign]
        for connection in endpoint.connections():
            self._end_of(host, connection)

    def _end_of(self, host: Host, connection: Connection) -> Account:
        """Return the account of a connection, which is to be looked at after this turn."""
        end = self._ends.get(connection)
        if end is None:
            end = self._ends[connection] = self._by_session[connection.session_id] = Account(
                connection, self.used
            )
        self._touched[host][end] = None
        return end

    def _peer_of(self, end: Account) -> Account | None:
        return self._by_session.get(end.peer_session_id)

    def _on_datagram(self, host: Host, datagram: bytes, address: Address) -> None:
        self._strangers[host][address] += AMPLIFICATION_MAX * len(datagram)
        if len(datagram) < PACKET_HEADER_BYTES or datagram[0] != TRANSPORT:
            return
        _, _, _, session_id, number = TRANSPORT_HEADER.unpack_from(datagram)
        connection = insides.connection_of(host.endpoint, session_id)
        if connection is None:
            return
        end = self._end_of(host, connection)
        end.bytes_from[address] += len(datagram)
        peer = self._peer_of(end)
        if peer is not None and peer.sent.get(number) == crc32(datagram):
            end.note_arrival(number)

    def _on_event(self, end: Account, event: Event) -> None:
        peer = self._peer_of(end)
        if isinstance(event, MessageReceived):
            name = event.stream, event.number
            assert name not in end.heard, f"I1: message {name} came twice"
            assert peer is None or peer.said.get(name) == event.payload, f"I1: {name} has changed"
            end.heard.add(name)
        elif isinstance(event, MessageDelivered):
            name = event.stream, event.number
            assert name not in end.told_of, f"I1: message {name} arrived twice"
            assert peer is None or name in peer.heard, f"I1: {name} has not arrived"
            end.told_of.add(name)

    def _on_train(self, host: Host, train: Train) -> None:
        datagrams = train.datagrams()
        connection = _sender_of(host.endpoint, datagrams[0])
        if connection is None:
            if datagrams[0][0] != INIT:
                self._strangers[host][train.address] -= train.size
                assert self._strangers[host][train.address] >= 0, (
                    f"I7: {train.address} has not said enough to be answered"
                )
            return
        end = self._end_of(host, connection)
        have_fragments = [end.note_datagram(datagram) for datagram in datagrams]
        if any(have_fragments):
            end.check_window(len(datagrams), train.segment)
        if train.address != connection.address:
            end.bytes_to[train.address] += train.size
            most = AMPLIFICATION_MAX * end.bytes_from[train.address]
            assert end.bytes_to[train.address] <= most, f"I7: {train.address} has not proved itself"


def _sender_of(endpoint: Endpoint, datagram: bytes) -> Connection | None:
    """Return which connection a packet is from; None for one that is from none."""
    if datagram[0] == TRANSPORT:
        session_id = TRANSPORT_HEADER.unpack_from(datagram)[3]
        for connection in endpoint.connections():
            if connection.was_open and connection.sender.peer_session_id == session_id:
                return connection
    return None


def _check_reassembly(connection: Connection) -> None:
    reassembly = insides.reassembly_of(connection)
    held = insides.charges_of(reassembly)
    assert held <= connection.bytes_held <= reassembly.window_bytes, (
        f"I6: {held} bytes are put together, {connection.bytes_held} held"
    )
    assert reassembly.declared <= reassembly.credit, "I6: more was declared than there is credit"


def _check_in_flight(sender: Sender) -> None:
    sent = sender.recovery.sent
    in_flight = sent.fates(sent.oldest, sent.next_number) == Fate.IN_FLIGHT
    sizes = sent.sizes(slice(sent.oldest, sent.next_number))[in_flight]
    assert (sent.packets_in_flight, sent.bytes_in_flight) == (len(sizes), int(sizes.sum())), (
        f"I4: {sent.packets_in_flight} packets, {sent.bytes_in_flight} bytes are not {len(sizes)}, "
        f"{int(sizes.sum())}"
    )


def _check_queue(sender: Sender) -> None:
    sent, queue = sender.recovery.sent, sender.queue
    messages = insides.messages_of(queue)
    assert queue.bytes_queued == sum(m.shaped.total for m in messages), "I4: bytes queued"
    if not messages:
        return
    fates = sent.fates(sent.oldest, sent.next_number)
    numbers = np.flatnonzero(fates == Fate.IN_FLIGHT) + sent.oldest
    keys, indexes = sent.fragments(numbers)
    shared = {
        fragment
        for number, contents in sent.contents.items()
        if number >= sent.oldest and fates[number - sent.oldest] == Fate.IN_FLIGHT
        for fragment in contents.fragments
    }
    for message in messages:
        if not message.next_fragment or (message.shaped.count == 1 and (message.key, 0) in shared):
            continue
        in_doubt = insides.fates_of(message) == SENT
        in_doubt[indexes[keys == message.key]] = False
        lost = [i for i in np.flatnonzero(in_doubt).tolist() if (message.key, i) not in shared]
        assert not lost, f"I4: nothing will tell of fragments {lost} of message {message.key}"


def _check_progress(endpoint: Endpoint, connection: Connection) -> None:
    sender, received = connection.sender, insides.received_by(connection)
    recovery = sender.recovery
    assert recovery.deadline is not None or not (
        recovery.sent.packets_in_flight and recovery.probing
    ), "I8: nobody would ever ask what became of packets"
    assert not insides.owes_an_acknowledgement(received) or received.deadline is not None, (
        "I8: nothing would ever be acknowledged"
    )
    assert (
        sender.queue.next_message() is None
        or sender.recovery.sent.packets_in_flight
        or insides.paced_until(sender) is not None
        or insides.waits_for_a_turn(endpoint, connection)
    ), "I8: nothing would ever be sent"


def _check_timer(host: Host, end: Account, now: float) -> None:
    endpoint, connection = host.endpoint, end.connection
    if connection.state is State.CLOSED:
        return
    deadline = connection.next_timer()
    armed = insides.armed_deadline(endpoint, connection)
    assert deadline is not None, "I8: nothing would ever wake it"
    # An ACK may show that it should have been asked for before; then that happens at once.
    late = max(host.slowness, host.late)
    end.overdue = end.overdue + 1 if deadline < now - late else 0
    assert end.overdue <= OVERDUE_TURNS_MAX, f"I8: since {now - deadline} seconds it is due"
    if insides.waits_for_a_turn(endpoint, connection):
        armed = insides.turn_deadline(endpoint)
        assert armed is not None, "I8: it waits for a turn that does not come"
    else:
        assert armed is not None, "I8: the endpoint would never wake it"
        assert armed <= deadline, f"I8: it would be woken {armed - deadline} seconds late"
    wakes = endpoint.next_timer()
    assert wakes is not None
    assert wakes <= armed, f"I8: the endpoint would be woken {wakes - armed} seconds late"
