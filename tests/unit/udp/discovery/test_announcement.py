"""What a master says of itself: its text, and everything that is none."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gradwire_protocol import UsageError
from gradwire_udp.discovery.announcement import (
    ANNOUNCEMENT_BYTES_MAX,
    Announcement,
    AnnouncementError,
)
from support.tiers import examples
from support.wording import naming

FULL = Announcement(
    master="10.0.2.4:40123,10.0.2.5:40123*2",
    others=("[::1]:40123",),
    settings={"run": "digits", "mode": "averaging(every=16)", "density_band": [0.1, 0.2]},
    keys=("1f09c2",),
    version="0.1.0",
    host="node4",
    instance="8d0c",
    term=3,
    lasts_seconds=10.0,
    at=1.5,
)


def test_what_is_packed_is_parsed_again() -> None:
    again = Announcement.parse(FULL.pack())

    assert again == FULL
    assert again.at == FULL.at


def test_the_time_does_not_make_two_announcements_differ() -> None:
    assert FULL.written_at(7.0) == FULL
    assert replace(FULL, term=4) != FULL


def test_a_field_that_a_later_version_adds_is_passed_over() -> None:
    content = json.loads(FULL.pack()) | {"weather": "fine"}

    assert Announcement.parse(json.dumps(content).encode()) == FULL


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"gradwire": 2}, naming("format", 2, 1)),
        ({"gradwire": None}, naming("'gradwire'")),
        ({"master": ""}, naming("master", 8_000)),
        ({"master": 5}, naming("master", 8_000)),
        ({"master": "zk://again/path"}, naming("master", "zk://again/path")),
        ({"master": "a:1,,b:2"}, naming("master", "comma")),
        ({"master": "a\nb:1"}, naming("master", 8_000)),
        ({"master": "host:70000"}, naming("master", 65535)),
        ({"others": "host:1"}, naming("others", 3)),
        ({"others": ["host:1"] * 4}, naming("others", 3)),
        ({"others": ["a:1,b:1"]}, naming("others", "a:1,b:1")),
        ({"settings": []}, naming("settings", 200)),
        ({"settings": {str(n): n for n in range(201)}}, naming("settings", 200)),
        ({"settings": {"\x1b": 1}}, naming("setting", 300)),
        ({"keys": ["a"] * 9}, naming("keys", 8)),
        ({"keys": [7]}, naming("keys", 300)),
        ({"host": "x" * 301}, naming("host", 300)),
        ({"version": "\x1b[31m"}, naming("version", 300)),
        ({"term": -1}, naming("term")),
        ({"term": True}, naming("term")),
        ({"lasts_seconds": 1e9}, naming("lasts_seconds", 300)),
        ({"at": "now"}, naming("at")),
    ],
)
def test_a_field_that_is_wrong_is_named(changed: dict[str, Any], named: str) -> None:
    content = json.loads(FULL.pack()) | changed

    with pytest.raises(AnnouncementError, match=named):
        Announcement.parse(json.dumps(content).encode())


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", naming("JSON")),
        (b"\xff", naming("JSON")),
        (b"[]", naming("list", "object")),
        (b"[" * 60_000, naming("JSON")),
        (b'{"gradwire": 1, "at": NaN}', naming("NaN")),
        (b"9" * 50_000, naming("JSON")),
        (b" " * (ANNOUNCEMENT_BYTES_MAX + 1), naming(ANNOUNCEMENT_BYTES_MAX + 1, 65_536)),
    ],
)
def test_what_is_no_announcement_is_refused(content: bytes, named: str) -> None:
    with pytest.raises(AnnouncementError, match=named):
        Announcement.parse(content)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=12,
)


@hypothesis_settings(max_examples=examples(200))
@given(changed=st.dictionaries(st.sampled_from(sorted(json.loads(FULL.pack()))), JSON))
def test_whatever_stands_in_a_field_is_taken_or_refused(changed: dict[str, Any]) -> None:
    content = json.dumps(json.loads(FULL.pack()) | changed).encode()

    try:
        found = Announcement.parse(content)
    except AnnouncementError:
        return
    assert Announcement.parse(found.pack()) == found


@hypothesis_settings(max_examples=examples(200))
@given(content=st.binary(max_size=200))
def test_bytes_are_taken_or_refused(content: bytes) -> None:
    with pytest.raises(AnnouncementError):
        Announcement.parse(content)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"threshold": float("inf")}, naming("JSON")),
        ({"run": object()}, naming("JSON")),
        ({"run": "x" * ANNOUNCEMENT_BYTES_MAX}, naming(65_536, "[session]")),
    ],
)
def test_settings_that_cannot_be_announced_are_refused(
    settings: dict[str, Any], named: str
) -> None:
    with pytest.raises(UsageError, match=named):
        replace(FULL, settings=settings).pack()


def test_a_master_that_ran_at_the_same_address_of_the_same_machine_is_replaced() -> None:
    before = replace(FULL, instance="before")

    assert FULL.replaces(before)
    assert FULL.replaces(FULL)
    assert not FULL.replaces(replace(before, host="node5"))
    assert not FULL.replaces(replace(before, master="10.0.2.9:40123"))
    assert not replace(FULL, host="").replaces(replace(before, host=""))


def test_of_two_masters_of_a_run_the_one_with_the_later_term_replaces_the_other() -> None:
    primary = replace(FULL, master="a:1", others=("b:1",), instance="p", host="p", term=1)
    standby = replace(FULL, master="b:1", others=("a:1",), instance="s", host="s", term=2)
    stranger = replace(FULL, master="c:1", others=("d:1",), instance="x", host="x", term=9)

    assert standby.replaces(primary)
    assert not primary.replaces(standby)
    assert not stranger.replaces(primary)
    assert not replace(stranger, others=()).replaces(replace(primary, others=()))
