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
    masters=("10.0.2.4:40123", "[::1]:40123"),
    settings={"run": "digits", "mode": "averaging(every=16)", "density_band": [0.1, 0.2]},
    host="node4",
    term=3,
)


def test_what_is_packed_is_parsed_again() -> None:
    assert Announcement.parse(FULL.pack()) == FULL


def test_fields_of_a_later_version_and_personal_settings_are_ignored() -> None:
    content = json.loads(FULL.pack()) | {"weather": "fine"}
    content["settings"] |= {"key_file": "/etc/theirs", "rank": 3, "master": "elsewhere:1"}

    assert Announcement.parse(json.dumps(content).encode()) == FULL


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"gradwire": 2}, naming("format", 2, 1)),
        ({"masters": "host:1"}, naming("masters", 16)),
        ({"masters": []}, naming("masters", 16)),
        ({"masters": ["host:1"] * 17}, naming("masters", 16)),
        ({"masters": [5]}, naming("masters", 5, 300)),
        ({"masters": ["zk://again/path"]}, naming("masters", "zk://again/path")),
        ({"masters": ["a\nb:1"]}, naming("masters", 300)),
        ({"masters": ["host:70000"]}, naming("masters", 65535)),
        ({"settings": []}, naming("settings")),
        ({"host": "x" * 256}, naming("host", 255)),
        ({"term": -1}, naming("term")),
        ({"term": True}, naming("term")),
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
        (b"[]", naming("object", "'gradwire'")),
        (b"{}", naming("object", "'gradwire'")),
        (b"[" * 16_000, naming("JSON")),
        (b"9" * 16_000, naming("JSON")),
        (b" " * (ANNOUNCEMENT_BYTES_MAX + 1), naming(ANNOUNCEMENT_BYTES_MAX + 1, 16_384)),
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
    assert all(isinstance(master, str) for master in found.masters)


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"run": float("nan")}, naming("settings")), ({"run": "x" * 17_000}, naming(16_384))],
)
def test_settings_that_cannot_be_announced_are_refused(settings: Any, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        replace(FULL, settings=settings).pack()


def test_a_restarted_master_and_one_of_a_later_term_replace_what_stands_there() -> None:
    alone = Announcement(masters=("10.0.2.4:40123",), host="node4")
    later = Announcement(masters=(FULL.masters[1], FULL.masters[0]), host="node5", term=4)

    assert alone.replaces(alone)
    assert not alone.replaces(replace(alone, host="node5"))
    assert not alone.replaces(replace(alone, masters=("10.0.2.4:40124",)))
    assert later.replaces(FULL)
    assert not FULL.replaces(later)
    assert not replace(later, masters=("10.0.9.9:1", "10.0.9.9:2")).replaces(FULL)
