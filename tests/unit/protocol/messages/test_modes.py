"""Modes as text: what is written is read again, and what is none is refused with what there is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import UsageError
from gradwire_protocol.messages.modes.kept_state import ANY, KeptState
from gradwire_protocol.messages.modes.mode import (
    AVERAGING,
    BITS,
    CENTRAL,
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
from gradwire_protocol.messages.modes.optimizer import OPTIMIZERS, Optimizer, values_of
from support.wording import naming

ADAMW = KeptState("AdamW", ("exp_avg", "exp_avg_sq"), ("step",))
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
        st.just(AVERAGING),
        bits=st.sampled_from(BITS[1:]),
        optimizer_state=st.sampled_from([True, False, ADAMW, str(ADAMW)]),
    ),
    st.builds(
        new_mode,
        st.just(DILOCO),
        every=st.integers(1, EVERY_MAX),
        outer_lr=st.floats(0.0, OUTER_LR_MAX),
        outer_momentum=st.floats(0.0, OUTER_MOMENTUM_MAX),
    ),
    st.builds(
        new_mode,
        st.just(CENTRAL),
        optimizer=st.sampled_from(sorted(OPTIMIZERS)),
        lr=st.floats(0.0, 10.0),
        weight_decay=st.floats(0.0, 1.0),
        gradients_per_update=st.integers(1, 100),
        staleness=st.sampled_from(["none", "inverse"]),
        gradient_max=st.floats(1.0, 1000.0),
    ),
    st.builds(
        new_mode,
        st.just(CENTRAL),
        momentum=st.floats(0.1, 0.9),
        nesterov=st.booleans(),
        schedule=st.sampled_from(["cosine", "linear"]),
        warm_up=st.integers(0, 10),
        steps=st.integers(11, 10**6),
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
        ("diloco(sparse=1/64)", Mode(DILOCO, 8, 0, 120, sparse=1 / 64)),
        ("averaging(every=30, sparse=0.02)", Mode(AVERAGING, 30, 0, 120, sparse=0.02)),
        ("diloco(every=6, streams=3)", Mode(DILOCO, 6, 8, 120, 0.7, 0.9, streams=3)),
        ("diloco(every=2, outer_lr=0.5)", Mode(DILOCO, 2, 8, 120, 0.5, 0.9)),
        ("averaging(round_timeout_seconds=5)", Mode(AVERAGING, 16, 8, 5)),
        ("averaging(optimizer_state=False)", Mode(AVERAGING, 16, 8)),
        ("averaging(optimizer_state=True)", Mode(AVERAGING, 16, 8, optimizer_state=ANY)),
        (
            "averaging(bits=4, optimizer_state=AdamW[exp_avg exp_avg_sq; step])",
            Mode(AVERAGING, 16, 4, optimizer_state=ADAMW),
        ),
        (
            "averaging(optimizer_state=SGD[momentum_buffer])",
            Mode(AVERAGING, 16, 8, optimizer_state=KeptState("SGD", ("momentum_buffer",), ())),
        ),
        ("central", Mode(CENTRAL, bits=8, optimizer=Optimizer())),
        (
            "central(optimizer=rmsprop, lr=1e-4)",
            Mode(CENTRAL, bits=8, optimizer=Optimizer("rmsprop", lr=1e-4, beta2=0.99)),
        ),
        (
            "central(momentum=0.9, nesterov=True, gradients_per_update=4)",
            Mode(
                CENTRAL,
                bits=8,
                optimizer=Optimizer(momentum=0.9, nesterov=True),
                gradients_per_update=4,
            ),
        ),
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
        ("diloco(outer_momentum=1)", (DILOCO, "outer_momentum", 1, 0.999)),
        ("averaging(every=0)", (AVERAGING, "every", 0, EVERY_MAX)),
        ("averaging(bits=3)", (AVERAGING, "bits", 3, 8)),
        ("averaging(every=many)", (AVERAGING, "every", "many", EVERY_MAX)),
        ("averaging(many)", ("many", "name=value")),
        ("central(optimizer=lion)", (CENTRAL, "lion", "sgd", "adamw")),
        ("central(optimizer=adam, momentum=0.9)", ("momentum", "adam", "beta1")),
        ("central(nesterov=True)", ("nesterov", "momentum")),
        ("central(schedule=cosine)", ("cosine", "steps=0", "number")),
        ("central(steps=10)", ("constant", "steps=10")),
        ("central(schedule=linear, steps=10, warm_up=10)", ("warm_up=10", "steps=10")),
        ("central(gradients_per_update=0)", ("gradients_per_update", 0, 4000)),
        ("central(staleness=linear)", ("staleness", "linear", "inverse")),
        ("central(lr=nan)", ("lr", "nan")),
        ("central(every=2)", ("every", "sgd", "lr", "gradients_per_update")),
        ("diloco(streams=5)", (DILOCO, "streams", 5, "every=64")),
        ("diloco(streams=2, bits=0)", (DILOCO, "streams=2", "bits=0", "bits=8")),
        ("averaging(streams=2)", (AVERAGING, "streams", "every")),
        ("averaging(sparse=1/64, bits=8)", ("sparse: 1/64", "bits=8", "bits=0")),
        ("diloco(sparse=1/64, outer_momentum=0.9)", ("sparse: 1/64", "outer_momentum=0.9")),
        ("synchronous(sparse=1/64)", (SYNCHRONOUS, "sparse")),
        ("averaging(sparse=1/1)", (AVERAGING, "sparse", "0.5")),
        ("averaging(optimizer_state=yes)", (AVERAGING, "yes", True, "AdamW[exp_avg; step]")),
        ("averaging(optimizer_state=A[])", (AVERAGING, "A", "no name")),
        ("averaging(optimizer_state=A[b b])", (AVERAGING, "A", "twice")),
        ("averaging(optimizer_state=True, bits=0)", ("optimizer_state", "bits=0", "bits=8")),
        ("diloco(optimizer_state=True)", (DILOCO, "optimizer_state", "every")),
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


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_has_what_can_be_said_of_it(name: str) -> None:
    optimizer = OPTIMIZERS[name]

    said = {key: getattr(optimizer, key) for key in values_of(optimizer)}

    assert new_mode(CENTRAL, optimizer=name, **said).optimizer == optimizer


def test_a_rate_rises_and_falls() -> None:
    optimizer = Optimizer(lr=2.0, schedule="cosine", steps=110, warm_up=10)

    rates = [optimizer.rate_at(step) for step in (1, 5, 10, 60, 110, 200)]

    assert rates == pytest.approx([0.2, 1.0, 2.0, 1.0, 0.0, 0.0])
    assert Optimizer(lr=2.0, warm_up=4).rate_at(2) == 1.0
    assert Optimizer(lr=2.0).rate_at(10**6) == 2.0


@pytest.mark.parametrize(("largest", "exponent"), [(32.0, -25), (33.0, -24), (1.0, -30)])
def test_gradients_are_multiples_of_a_power_of_two(largest: float, exponent: int) -> None:
    assert Optimizer(gradient_max=largest).gradient_exponent == exponent


def test_a_mode_that_does_not_say_what_is_kept_allows_one_that_does() -> None:
    insists, without = parse_mode("averaging(optimizer_state=True)"), parse_mode("averaging")
    exact = new_mode(AVERAGING, optimizer_state=ADAMW)

    assert insists.allows(exact)
    assert insists.allows(insists)
    assert exact.allows(exact)
    assert not exact.allows(insists)
    assert not insists.allows(without)
    assert not without.allows(exact)
    assert not insists.allows(new_mode(AVERAGING, every=3, optimizer_state=ADAMW))
