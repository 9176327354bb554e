"""Event loops by name."""

import asyncio
import sys

import pytest
import uvloop

from gradwire_protocol import UsageError
from gradwire_udp import new_event_loop
from support.wording import naming


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("auto", uvloop.Loop),
        ("uvloop", uvloop.Loop),
        ("asyncio", asyncio.SelectorEventLoop),
    ],
)
def test_a_loop_is_of_the_kind_that_was_asked_for(
    kind: str, expected: type[asyncio.AbstractEventLoop]
) -> None:
    loop = new_event_loop(kind)
    try:
        assert isinstance(loop, expected)
        assert loop.run_until_complete(asyncio.sleep(0, "it runs")) == "it runs"
    finally:
        loop.close()


def test_another_kind_is_refused() -> None:
    with pytest.raises(UsageError, match=naming("loop", "trio", "auto", "uvloop", "asyncio")):
        new_event_loop("trio")


@pytest.fixture
def without_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine where it is not installed."""
    monkeypatch.setitem(sys.modules, "uvloop", None)


@pytest.mark.usefixtures("without_uvloop")
def test_without_uvloop_auto_is_asyncio_s_own() -> None:
    loop = new_event_loop("auto")
    loop.close()

    assert isinstance(loop, asyncio.SelectorEventLoop)


@pytest.mark.usefixtures("without_uvloop")
def test_without_uvloop_asking_for_it_says_how_to_get_it() -> None:
    with pytest.raises(UsageError, match=naming("loop", "uvloop", "pip install uvloop")):
        new_event_loop("uvloop")
