"""Timers: nobody sleeps past his deadline, and what was overtaken does not pile up."""

from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol.connection.timers import TIMERS_SPARE, Timers

DEADLINES = st.integers(0, 20).map(float)
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("arm"), st.sampled_from("abc"), DEADLINES),
        st.tuples(st.just("cancel"), st.sampled_from("abc"), st.none()),
        st.tuples(st.just("due"), st.none(), DEADLINES),
    ),
    max_size=40,
)


@given(CALLS)
def test_each_has_its_turn_at_its_earliest_deadline_once(
    calls: list[tuple[str, str | None, float | None]],
) -> None:
    timers: Timers[str | None] = Timers()
    earliest: dict[str | None, float] = {}

    for call, owner, time in calls:
        if call == "arm" and time is not None:
            timers.arm(owner, time)
            earliest[owner] = min(time, earliest.get(owner, time))
        elif call == "cancel":
            timers.cancel(owner)
            earliest.pop(owner, None)
        elif time is not None:
            due = sorted((each for each, when in earliest.items() if when <= time), key=str)
            assert sorted(timers.pop_due(time), key=str) == due
            for each in due:
                del earliest[each]

        assert timers.next_deadline == min(earliest.values(), default=None)
        assert all(timers.deadline_of(each) == earliest.get(each) for each in "abc")


def test_who_has_no_deadline_has_no_turn() -> None:
    timers: Timers[str] = Timers()

    timers.arm("a", None)

    assert timers.next_deadline is None
    assert list(timers.pop_due(1e9)) == []


def test_overtaken_ones_are_thrown_out_when_there_are_many() -> None:
    timers: Timers[str] = Timers()
    timers.arm("quiet", -1e6)  # before all others, so that none of these comes to the top

    most = 0
    for deadline in range(10 * TIMERS_SPARE):
        timers.arm("busy", -float(deadline))
        most = max(most, len(timers))

    assert TIMERS_SPARE < most <= TIMERS_SPARE + 4
    assert timers.deadline_of("busy") == 1 - 10.0 * TIMERS_SPARE
