"""Connections that have sent more packets than a test could wait for."""

from gradwire_protocol import Connection


def go_on_from(connection: Connection, number: int) -> None:
    """Let the next packet of a quiet connection have this number, as if it had sent all before."""
    sent = connection.sender.recovery.sent
    assert not sent.packets_in_flight, "something is under way"
    assert not sent.lost_packets, "something may still arrive"
    assert number >= sent.next_number, f"packet {number} was sent"
    sent.next_number = sent.oldest = sent._base = number
