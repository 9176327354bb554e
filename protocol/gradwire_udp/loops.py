"""Event loops: uvloop where it is installed, asyncio's own otherwise."""

import asyncio


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a loop of uvloop; of asyncio where uvloop is not installed, as on Windows."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
