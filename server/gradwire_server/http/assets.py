"""The files of the page, as they are in the package: no build step, and no other host is asked."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath
from typing import Final

PREFIX: Final = "/page/"

TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Content types by the ends of names; other files, such as licences, are not served."""

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""Content-Security-Policy (W3C, level 3): nothing from elsewhere, and nothing inline."""

HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
}
"""Of every file."""


@dataclass(frozen=True, slots=True)
class Asset:
    """A file, as it is served."""

    body: bytes
    content_type: str


@cache
def assets() -> Mapping[str, Asset]:
    """Return the files by their paths."""
    root = files(__package__) / "page"
    found = {
        PREFIX + name: Asset(file.read_bytes(), TYPES[PurePosixPath(name).suffix])
        for name, file in _below(root, "")
        if PurePosixPath(name).suffix in TYPES
    }
    return {**found, "/": found[PREFIX + "index.html"]}


def is_of_page(path: str) -> bool:
    """Return whether a path is the page's: its files say nothing about any run."""
    return path == "/" or path.startswith(PREFIX)


def _below(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _below(entry, f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name, entry
