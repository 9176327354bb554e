"""Cookies: good for the address they were made for, for a while, and nothing is kept of them."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol.limits import COOKIE_SECONDS
from gradwire_protocol.security.unproved import Cookies
from gradwire_protocol.wire.packets import COOKIE_BYTES
from support.state import state_of

NOW = 1000.0
KEY_ID = b"k" * 16
ADDRESS = ("192.0.2.1", 9740)


def jar(seed: int = 1) -> Cookies:
    return Cookies(Random(seed).randbytes)


def test_a_cookie_is_good_for_the_address_and_the_key_it_was_made_for() -> None:
    cookies = jar()
    cookie = cookies.make(ADDRESS, KEY_ID, NOW)

    assert len(cookie) == COOKIE_BYTES
    assert cookies.is_valid(cookie, ADDRESS, KEY_ID, NOW)
    assert not cookies.is_valid(cookie, ("192.0.2.2", 9740), KEY_ID, NOW)
    assert not cookies.is_valid(cookie, ("192.0.2.1", 9741), KEY_ID, NOW)
    assert not cookies.is_valid(cookie, ADDRESS, b"j" * 16, NOW)


@given(cookie=st.binary(min_size=COOKIE_BYTES, max_size=COOKIE_BYTES))
def test_a_guess_is_not_good(cookie: bytes) -> None:
    cookies = jar()
    cookies.make(ADDRESS, KEY_ID, NOW)

    assert not cookies.is_valid(cookie, ADDRESS, KEY_ID, NOW)


@given(renewed=st.floats(0, COOKIE_SECONDS - 1), age=st.floats(0, 3 * COOKIE_SECONDS))
def test_a_cookie_is_good_for_one_lifetime_of_a_secret_at_least_and_two_at_most(
    renewed: float, age: float
) -> None:
    cookies = jar()
    cookies.make(ADDRESS, KEY_ID, NOW)
    made = NOW + renewed
    cookie = cookies.make(ADDRESS, KEY_ID, made)

    valid = cookies.is_valid(cookie, ADDRESS, KEY_ID, made + age)

    if age < COOKIE_SECONDS:
        assert valid
    if age >= 2 * COOKIE_SECONDS:
        assert not valid


@pytest.mark.parametrize("count", [1, 1000])
def test_nothing_is_kept_of_cookies_however_many_are_made(count: int) -> None:
    cookies, other = jar(), jar()
    other.make(ADDRESS, KEY_ID, NOW)

    for port in range(count):
        cookies.make(("192.0.2.1", port), KEY_ID, NOW)

    assert state_of(cookies) == state_of(other)
