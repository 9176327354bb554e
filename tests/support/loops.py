"""Event loops by name: what runs on them has to do so on each."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import uvloop

LOOPS_BY_NAME: Final[Mapping[str, Callable[[], asyncio.AbstractEventLoop]]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
"""What makes a loop, by its name."""
