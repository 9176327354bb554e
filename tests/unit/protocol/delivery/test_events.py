"""What a connection tells its application."""

from gradwire_protocol import MessageReceived
from support.fragments import message_of


def test_a_message_that_came_in_says_what_it_is() -> None:
    message = message_of(3000, stream=1, number=2, kind=3)

    event = MessageReceived(message, charge=3512)

    assert (event.stream, event.number, event.kind) == (1, 2, 3)
    assert event.payload is message.payload
