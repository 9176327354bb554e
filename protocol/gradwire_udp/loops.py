"""Event loops: uvloop where it is installed, asyncio's own otherwise."""

import asyncio

from gradwire_protocol import UsageError


def new_event_loop(kind: str) -> asyncio.AbstractEventLoop:
    """Return a loop of the kind ``auto``, ``uvloop`` or ``asyncio``.

    Raises
    ------
    UsageError
        If uvloop is asked for and not installed.
    """
    if kind not in ("auto", "uvloop", "asyncio"):
        raise UsageError(f"loop={kind!r}; it has to be 'auto', 'uvloop' or 'asyncio'")
    if kind != "asyncio":
        try:
            import uvloop
        except ImportError:
            if kind == "uvloop":
                raise UsageError(
                    "loop='uvloop', but uvloop is not installed: pip install uvloop"
                ) from None
        else:
            loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
            return loop
    return asyncio.new_event_loop()
