"""Modes as text: what is written is read again, and what is none is refused with what there is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import UsageError
from gradwire_protocol.messages.modes import (
    AVERAGING,
    BITS,
    DILOCO,
    EVERY_MAX,
    OUTER_LR_MAX,
    OUTER_MOMENTUM_MAX,
    ROUND_TIMEOUT_SECONDS_MAX,
    SHARING,
    SYNCHRONOUS,
    Mode,
    new_mode,
    parse_mode,
)
from support.wording import naming

SECONDS = st.integers(1, ROUND_TIMEOUT_SECONDS_MAX)
MODES = st.one_of(
    st.just(new_mode(SHARING)),
    st.builds(new_mode, st.just(SYNCHRONOUS), bits=st.sampled_from(BITS)),
    st.builds(
        new_mode,
        st.just(AVERAGING),
        every=st.integers(1, EVERY_MAX),
        bits=st.sampled_from(BITS),
        round_timeout_seconds=SECONDS,
    ),
    st.builds(
        new_mode,
        st.just(DILOCO),
        every=st.integers(1, EVERY_MAX),
        outer_lr=st.floats(0.0, OUTER_LR_MAX),
        outer_momentum=st.floats(0.0, OUTER_MOMENTUM_MAX),
    ),
)


@given(mode=MODES)
def test_the_text_of_a_mode_stands_for_it(mode: Mode) -> None:
    assert parse_mode(str(mode)) == mode


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("sharing", Mode()),
        ("synchronous", Mode(SYNCHRONOUS, bits=8)),
        ("averaging", Mode(AVERAGING, every=16, bits=8)),
        ("averaging()", Mode(AVERAGING, every=16, bits=8)),
        (" averaging ( every = 2 , bits=8 ) ", Mode(AVERAGING, every=2, bits=8)),
        ("diloco", Mode(DILOCO, 64, 8, 120, 0.7, 0.9)),
        ("diloco(every=2, outer_lr=0.5)", Mode(DILOCO, 2, 8, 120, 0.5, 0.9)),
        ("averaging(round_timeout_seconds=5)", Mode(AVERAGING, 16, 8, 5)),
    ],
)
def test_what_a_text_leaves_out_is_as_usual(text: str, mode: Mode) -> None:
    assert parse_mode(text) == mode


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gossip", ("gossip", SHARING, SYNCHRONOUS, AVERAGING)),
        ("averaging(evry=3)", (AVERAGING, "evry", "every")),
        ("averaging(outer_lr=0.5)", (AVERAGING, "outer_lr", "every")),
        ("diloco(outer_lr=nan)", (DILOCO, "outer_lr", "nan", 10)),
        ("diloco(outer_momentum=1)", (DILOCO, "outer_momentum", 1.0, 0.999)),
        ("averaging(every=0)", (AVERAGING, "every", 0, EVERY_MAX)),
        ("averaging(bits=3)", (AVERAGING, "bits", 3, 8)),
        ("averaging(every=many)", ("every=many", "number")),
        ("averaging(every=3", ("averaging(every=3", "averaging(every=5")),
        ("sharing(every=3)", (SHARING, "every")),
        ("synchronous(every=3)", (SYNCHRONOUS, "every", "bits")),
        ("8", ("8", AVERAGING)),
    ],
)
def test_what_is_no_mode_is_refused_with_what_there_is(text: str, words: tuple[object]) -> None:
    with pytest.raises(UsageError, match=naming(*words)):
        parse_mode(text)


def test_only_sharing_has_no_rounds_and_bits_say_how_far_an_element_counts() -> None:
    assert [parse_mode(name).has_rounds for name in (SHARING, SYNCHRONOUS, AVERAGING)] == [
        False, True, True,
    ]  # fmt: skip
    assert [new_mode(SYNCHRONOUS, bits=bits).magnitude_max for bits in BITS] == [None, 7, 127]
