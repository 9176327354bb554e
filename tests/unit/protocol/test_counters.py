"""Counters: every reason to drop a datagram has one."""

from dataclasses import fields

from gradwire_protocol import Counters, Drop
from gradwire_protocol.counters import RefusedInit


def test_at_first_every_counter_is_zero() -> None:
    counters = Counters()

    plain = {f.name for f in fields(Counters)} - {"drops", "refused"}
    assert {getattr(counters, name) for name in plain} == {0}
    assert counters.drops == dict.fromkeys(Drop, 0)


def test_a_drop_is_counted_under_its_reason_and_in_its_own_endpoint() -> None:
    counters, other = Counters(), Counters()

    for reason in (Drop.SHORT, Drop.SHORT, Drop.FULL):
        counters.count_drop(reason)

    assert {reason: n for reason, n in counters.drops.items() if n} == {Drop.SHORT: 2, Drop.FULL: 1}
    assert other == Counters()


def test_of_each_reason_one_init_that_was_refused_is_kept_until_it_is_taken_out() -> None:
    counters = Counters()

    counters.count_refused(Drop.UNKNOWN_KEY, "a", memoryview(b"key"))
    counters.count_refused(Drop.UNKNOWN_KEY, "b", b"other")
    counters.count_refused(Drop.DENIED, "c", b"key", "gpu7")
    counters.count_drop(Drop.SHORT)

    assert counters.drops[Drop.UNKNOWN_KEY] == 2
    assert counters.refused == {
        Drop.UNKNOWN_KEY: RefusedInit("a", b"key"),
        Drop.DENIED: RefusedInit("c", b"key", "gpu7"),
    }
    counters.refused.clear()
    counters.count_refused(Drop.UNKNOWN_KEY, "b", b"other")
    assert counters.refused == {Drop.UNKNOWN_KEY: RefusedInit("b", b"other")}
