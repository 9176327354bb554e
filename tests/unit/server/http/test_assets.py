"""The files of the page: what is served, and that nothing in them asks for anything else."""

import hashlib
import re
from importlib.resources import files

import aiohttp
import pytest

from gradwire_server.http.access import Access, Token
from gradwire_server.http.assets import HEADERS, POLICY, PREFIX, assets, page_routes
from support.http_side import serving

VENDOR = files("gradwire_server.http") / "page" / "vendor"
OWN = [path for path in assets() if "/vendor/" not in path and path != "/"]


def text_of(path: str) -> str:
    return assets()[path].body.decode()


def test_what_comes_from_others_is_what_its_page_says() -> None:
    page = (VENDOR / "README.md").read_text("utf-8")
    said = re.findall(r"^([0-9a-f]{64})  (?:dist/)?(\S+)$", page, re.MULTILINE)

    there = {file.name: file.read_bytes() for file in VENDOR.iterdir() if file.name != "README.md"}

    assert {name: hashlib.sha256(body).hexdigest() for name, body in there.items()} == {
        name: digest for digest, name in said
    }


def test_every_file_that_is_named_is_there_and_nothing_is_inline() -> None:
    page = text_of("/")
    named = re.findall(r'(?:src|href)="([^"#]+)"', page)

    assert named
    assert set(named) <= assets().keys()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", page)
    for path in OWN:
        for module in re.findall(r'from "\./([^"]+)"', text_of(path)):
            assert PREFIX + module in assets(), (path, module)


@pytest.mark.parametrize("path", OWN)
def test_no_text_of_ours_is_taken_for_html_and_no_other_host_is_named(path: str) -> None:
    text = text_of(path)

    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text)
    hosts = set(re.findall(r"https?://([\w.]+)", text)) - {"www.w3.org"}  # the name of a format
    assert hosts == set()


async def test_files_are_open_without_the_token_and_allow_nothing_but_this_server_s() -> None:
    access = Access(token=Token(b"correct-horse-battery"), public=assets().keys())
    async with (
        serving(access=access, routes=page_routes()) as side,
        aiohttp.ClientSession() as client,
    ):
        for path, asset in assets().items():
            async with client.get(side.url + path) as response:
                assert (response.status, await response.read()) == (200, asset.body)
                assert HEADERS.items() <= response.headers.items()
        for path in ("/page/vendor/LICENSE", "/page/", "/api/v1/overview"):
            async with client.get(side.url + path) as response:
                assert response.status in (401, 404)

    rules = dict(rule.split(" ", 1) for rule in POLICY.split("; "))
    assert rules["default-src"] == "'none'"
    assert set(rules.values()) == {"'none'", "'self'"}
