"""Address validation: nothing is believed until the new address answers the challenge."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol.connection.path_validation import PathValidation
from gradwire_protocol.limits import CHALLENGE_DATAGRAM_BYTES, CHALLENGE_TRIES_MAX, RESPONSES_MAX

FULL = CHALLENGE_TRIES_MAX * CHALLENGE_DATAGRAM_BYTES
"""Size of a packet that is worth as many challenges as are ever sent."""


def new_path() -> PathValidation:
    return PathValidation("home", Random(1).randbytes)


def challenge(path: PathValidation, now: float) -> bytes:
    due = path.challenge_to_send(0.1, now)
    assert due is not None
    return due[0]


def in_doubt() -> tuple[PathValidation, bytes]:
    """Return the path to a peer that seems to have moved away, and what it was asked."""
    path = new_path()
    path.on_packet("away", FULL, now=1.0)
    return path, challenge(path, now=1.0)


def test_another_address_is_challenged_at_once_and_a_few_times() -> None:
    path = new_path()
    path.on_packet("away", FULL, now=1.0)

    sent = []
    for _ in range(CHALLENGE_TRIES_MAX):
        now = path.next_timer
        assert now is not None
        sent.append((now, path.challenge_to_send(0.1, now)))
        assert path.challenge_to_send(0.1, now + 0.05) is None, "not yet"
    given_up_at = path.next_timer
    assert given_up_at is not None

    [(_, first), *_] = sent
    assert first is not None
    assert first[1] == "away"
    assert sent == [(1.0, first), (1.1, first), (1.2000000000000002, first)]
    assert path.challenge_to_send(0.1, given_up_at) is None
    assert path.next_timer is None
    assert path.address == "home"


@given(sizes=st.lists(st.integers(20, 200), min_size=1, max_size=12), responses=st.booleans())
def test_no_more_is_sent_than_came_from_there(sizes: list[int], responses: bool) -> None:
    path = new_path()
    came = sent = tries = 0
    for now, size in enumerate(sizes):
        path.on_packet("away", size, now=float(now))
        came += size
        if responses:
            path.on_challenge(bytes(8), "away")
            sent += CHALLENGE_DATAGRAM_BYTES * (path.response_to_send() is not None)
        while path.next_timer is not None and path.challenge_to_send(0.1, path.next_timer):
            sent += CHALLENGE_DATAGRAM_BYTES
            tries += 1
        assert sent <= came

    assert responses or tries >= min(came // CHALLENGE_DATAGRAM_BYTES, 1)


def test_a_challenge_waits_until_enough_has_come() -> None:
    path = new_path()
    path.on_packet("away", CHALLENGE_DATAGRAM_BYTES - 1, now=1.0)
    before = path.next_timer, path.challenge_to_send(0.1, now=1.0)

    path.on_packet("away", CHALLENGE_DATAGRAM_BYTES - 1, now=2.0)

    assert before == (None, None)
    assert path.next_timer == 1.0
    assert challenge(path, now=2.0)


def test_responses_go_to_where_the_peer_is_or_was_heard_from() -> None:
    path = new_path()
    path.on_challenge(b"at home.", "home")
    assert path.response_to_send() == (b"at home.", "home")
    path.on_challenge(b"nowhere.", "away")
    assert path.response_to_send() is None

    path.on_packet("away", CHALLENGE_DATAGRAM_BYTES, now=1.0)
    path.on_challenge(b"is away.", "away")
    path.on_challenge(b"too many", "away")

    assert path.response_to_send() == (b"is away.", "away")
    assert path.response_to_send() is None, "one for what came"


def test_few_responses_are_owed_and_the_oldest_gives_way() -> None:
    path = new_path()
    for number in range(RESPONSES_MAX + 1):
        path.on_challenge(bytes([number] * 8), "home")

    owed = []
    while (response := path.response_to_send()) is not None:
        owed.append(response[0][0])

    assert owed == list(range(1, RESPONSES_MAX + 1))


@pytest.mark.parametrize(
    ("data", "address"), [(None, "home"), (None, "elsewhere"), (bytes(8), "away")]
)
def test_a_response_to_something_else_or_from_elsewhere_does_not_count(
    data: bytes | None, address: str
) -> None:
    path, asked = in_doubt()

    assert not path.on_response(data or asked, address)
    assert path.address == "home"


def test_a_third_address_is_challenged_with_other_data() -> None:
    path, data = in_doubt()

    path.on_packet("elsewhere", FULL, now=1.05)
    due = path.challenge_to_send(0.1, now=1.05)

    assert due is not None
    assert due[1] == "elsewhere"
    assert due[0] != data
    assert not path.on_response(data, "away")


def test_a_newer_packet_from_the_old_address_ends_the_doubt() -> None:
    path, data = in_doubt()

    path.on_packet("home", FULL, now=1.05)

    assert path.next_timer is None
    assert not path.on_response(data, "away")
    assert path.address == "home"
