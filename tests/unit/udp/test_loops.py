"""Event loops."""

import asyncio
import sys

import pytest
import uvloop

from gradwire_udp import new_event_loop


@pytest.mark.parametrize(
    ("installed", "expected"), [(True, uvloop.Loop), (False, asyncio.SelectorEventLoop)]
)
def test_a_loop_is_uvloop_s_where_that_is_installed(
    monkeypatch: pytest.MonkeyPatch, installed: bool, expected: type[asyncio.AbstractEventLoop]
) -> None:
    if not installed:
        monkeypatch.setitem(sys.modules, "uvloop", None)
    loop = new_event_loop()
    try:
        assert isinstance(loop, expected)
        assert loop.run_until_complete(asyncio.sleep(0, "it runs")) == "it runs"
    finally:
        loop.close()
