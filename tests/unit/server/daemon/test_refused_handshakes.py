"""What the log says of peers that are refused, and how often."""

import logging

import pytest

from gradwire_protocol.counters import Counters, Drop, RefusedInit
from gradwire_protocol.crypto.keys import KEY_ID_BYTES
from gradwire_server.daemon.listening import LINE_SECONDS, RefusedHandshakes
from support.wording import naming

KEY_ID = bytes(range(KEY_ID_BYTES))
ADDRESS = ("10.0.0.7", 5000)


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "gradwire.daemon")
    return caplog


@pytest.mark.parametrize(
    ("reason", "has_keys", "refused", "named"),
    [
        (Drop.UNKNOWN_KEY, True, RefusedInit(ADDRESS, KEY_ID), ("another run", "run key 010203")),
        (Drop.OTHER_SUITE, True, RefusedInit(ADDRESS, bytes(KEY_ID_BYTES)), ("without a key",)),
        (Drop.OTHER_SUITE, False, RefusedInit(ADDRESS, KEY_ID), ("this master has none",)),
        (Drop.DENIED, True, RefusedInit(ADDRESS, KEY_ID, "gpu7"), ("denied", "name gpu7")),
        (Drop.REPLAYED, True, RefusedInit(ADDRESS, KEY_ID, "gpu7"), ("clock", "name gpu7")),
    ],
)
def test_a_line_says_why_and_where_one_came_from(
    reason: Drop,
    has_keys: bool,
    refused: RefusedInit,
    named: tuple[str, ...],
    log: pytest.LogCaptureFixture,
) -> None:
    counters = Counters()
    watch = RefusedHandshakes(counters, has_keys=has_keys)
    for _ in range(3):
        counters.count_refused(reason, *refused)

    watch.look(1.0)

    [line] = log.messages
    assert line == naming("3 handshake datagrams", "10.0.0.7:5000", *named)


def test_one_reason_has_a_line_now_and_then_and_each_reason_has_its_own(
    log: pytest.LogCaptureFixture,
) -> None:
    counters = Counters()
    watch = RefusedHandshakes(counters, has_keys=True)
    for second in range(int(2.5 * LINE_SECONDS)):
        counters.count_refused(Drop.UNKNOWN_KEY, ADDRESS, KEY_ID)
        if second == 5:
            counters.count_refused(Drop.DENIED, ADDRESS, KEY_ID, "gpu7")
        watch.look(float(second))

    assert [line.split(" handshake")[0] for line in log.messages] == [
        "refused 1", "refused 1", f"refused {LINE_SECONDS:.0f}", f"refused {LINE_SECONDS:.0f}",
    ]  # fmt: skip


def test_what_another_process_of_the_master_refused_comes_from_nowhere(
    log: pytest.LogCaptureFixture,
) -> None:
    counters = Counters()
    counters.drops[Drop.UNKNOWN_KEY] = 2

    RefusedHandshakes(counters, has_keys=True).look(1.0)

    assert log.messages == ["refused 2 handshake datagrams with a key of another run"]
