"""The files of the page, as they are in the package: no build step, and no other host is asked."""

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath
from typing import Final

from aiohttp import web

PREFIX: Final = "/page/"

TYPES: Final = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
"""Content types by the ends of names; other files, such as licences, are not served."""

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
}
"""Of every file: nothing comes from elsewhere, and nothing is inline (W3C's CSP, level 3)."""


def page_files() -> dict[str, tuple[str, bytes]]:
    """Return the content type and the bytes of each file, by its path.

    They say nothing of any run, so that everyone may read them.
    """
    found = {
        PREFIX + name: (TYPES[PurePosixPath(name).suffix], file.read_bytes())
        for name, file in _below(files(__package__) / "page", "")
        if PurePosixPath(name).suffix in TYPES
    }
    return {**found, "/": found[PREFIX + "index.html"]}


def page_routes() -> list[web.RouteDef]:
    """Return the routes of all files."""
    return [_route(path, *file) for path, file in page_files().items()]


def _route(path: str, content_type: str, body: bytes) -> web.RouteDef:
    async def show(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type=content_type, charset="utf-8", headers=HEADERS)

    return web.get(path, show)


def _below(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _below(entry, f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name, entry
