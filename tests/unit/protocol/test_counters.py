"""Counters: every reason to drop a datagram has one, and all can be read by name."""

from dataclasses import fields

from gradwire_protocol import Counters, Drop


def test_at_first_every_counter_is_zero() -> None:
    counters = Counters()

    assert set(counters.flat().values()) == {0}
    assert counters.drops == dict.fromkeys(Drop, 0)


def test_a_drop_is_counted_under_its_reason() -> None:
    counters = Counters()

    counters.count_drop(Drop.SHORT)
    counters.count_drop(Drop.SHORT)
    counters.count_drop(Drop.FULL)

    assert {reason: n for reason, n in counters.drops.items() if n} == {Drop.SHORT: 2, Drop.FULL: 1}


def test_two_endpoints_count_apart() -> None:
    one, other = Counters(), Counters()

    one.count_drop(Drop.SHORT)

    assert other.drops[Drop.SHORT] == 0


def test_every_counter_but_the_drops_is_read_by_its_name() -> None:
    counters = Counters(packets_lost=3)

    assert counters.flat().keys() == {f.name for f in fields(Counters)} - {"drops"}
    assert counters.flat()["packets_lost"] == 3
