"""The files of the page: what is served, and that nothing in them asks for anything else."""

import hashlib
import re
from importlib.resources import files

import pytest

from gradwire_server.http.access import Access, Token
from gradwire_server.http.assets import POLICY, PREFIX, TYPES, assets, is_of_page

PAGE = files("gradwire_server.http") / "page"
OWN = [path for path in assets() if "/vendor/" not in path and path != "/"]
TOKEN = Token(b"correct-horse-battery")


def text_of(path: str) -> str:
    return assets()[path].body.decode()


def test_what_comes_from_others_is_what_its_page_says() -> None:
    vendor = PAGE / "vendor"
    said = {
        name.rpartition("/")[2]: digest
        for digest, name in re.findall(
            r"^([0-9a-f]{64})  (\S+)$", (vendor / "README.md").read_text("utf-8"), re.MULTILINE
        )
    }

    there = {file.name: file.read_bytes() for file in vendor.iterdir() if file.name != "README.md"}

    assert {name: hashlib.sha256(body).hexdigest() for name, body in there.items()} == said


def test_the_page_is_at_the_root_and_licences_are_not_served() -> None:
    assert assets()["/"] is assets()[PREFIX + "index.html"]
    assert all(path == "/" or path.startswith(PREFIX) for path in assets())
    assert not any(path.endswith(("LICENSE", ".md")) for path in assets())
    assert {asset.content_type for asset in assets().values()} <= set(TYPES.values())


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


def test_the_policy_allows_nothing_but_this_server_s_files() -> None:
    rules = dict(rule.split(" ", 1) for rule in POLICY.split("; "))

    assert rules["default-src"] == "'none'"
    assert set(rules.values()) == {"'none'", "'self'"}


@pytest.mark.parametrize(
    ("path", "is_page"),
    [("/", True), ("/page/main.js", True), ("/status", False), ("/api/v1/overview", False)],
)
def test_only_files_that_say_nothing_of_a_run_are_open_without_the_token(
    path: str, is_page: bool
) -> None:
    assert is_of_page(path) == is_page

    refused = Access(token=TOKEN).refusal(path, {}, on_loopback=False, is_of_page=is_page)

    assert (refused is None) == is_page
