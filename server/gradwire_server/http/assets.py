"""The files of the page, as they are in the package: no build step, and no other host is asked."""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from aiohttp import web
from aiohttp.typedefs import Handler

PREFIX: Final = "/page/"

TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Content types by the ends of names; other files, such as licences, are not served."""

SELF: Final = ("script-src", "style-src", "img-src", "connect-src")
NOTHING: Final = ("default-src", "base-uri", "form-action", "frame-ancestors")

POLICY: Final = "; ".join(
    [*(f"{each} 'none'" for each in NOTHING), *(f"{each} 'self'" for each in SELF)]
)
"""Content-Security-Policy (W3C, level 3): nothing from elsewhere, and nothing inline."""

HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
}
"""Of every file."""


class Asset(NamedTuple):
    """A file, as it is served."""

    body: bytes
    content_type: str


@cache
def assets() -> Mapping[str, Asset]:
    """Return the files by their paths. They say nothing about any run."""
    folder = files(__package__) / "page"
    found: dict[str, Asset] = {}
    for prefix, entry in ((PREFIX, folder), (f"{PREFIX}vendor/", folder / "vendor")):
        found |= {
            prefix + file.name: Asset(file.read_bytes(), TYPES[suffix])
            for file in entry.iterdir()
            if (suffix := _suffix(file)) in TYPES
        }
    return {"/": found[PREFIX + "index.html"], **found}


def page_routes() -> list[web.RouteDef]:
    """Return a route for each file."""
    return [web.get(path, _server(asset)) for path, asset in assets().items()]


def _server(asset: Asset) -> Handler:
    async def serve(_: web.Request) -> web.Response:
        return web.Response(
            body=asset.body, headers={"Content-Type": asset.content_type, **HEADERS}
        )

    return serve


def _suffix(file: Traversable) -> str:
    return PurePosixPath(file.name).suffix
