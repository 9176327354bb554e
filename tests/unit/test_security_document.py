"""SECURITY.md: every row of its table of threats names the test that shows it."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

REPOSITORY = Path(__file__).parents[2]
ATTACKERS = {"off-path", "on-path", "a worker", "the operator of the master"}


class Threat(NamedTuple):
    attacker: str
    wants: str
    result: str
    shown_by: str


def threats() -> list[Threat]:
    text = (REPOSITORY / "SECURITY.md").read_text(encoding="utf-8")
    table = text.partition("<!-- threats: begin -->")[2].partition("<!-- threats: end -->")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][2:]
    return [Threat(*(cell.strip() for cell in row.strip("|").split("|"))) for row in rows]


def test_the_table_tells_of_every_attacker() -> None:
    assert {threat.attacker for threat in threats()} >= ATTACKERS


@pytest.mark.parametrize("threat", threats(), ids=lambda threat: threat.wants.replace(" ", "-"))
def test_the_test_that_shows_it_is_there(threat: Threat) -> None:
    if threat.shown_by == "nothing to show":
        assert threat.result.startswith("Possible"), "what is stopped is shown"
        return
    named = re.fullmatch(r"`(tests/\S+\.py)::(\w+)`", threat.shown_by)
    assert named, threat.shown_by
    source = (REPOSITORY / named[1]).read_text(encoding="utf-8")

    assert re.search(rf"^(async def|def|class) {named[2]}\b|^{named[2]} =", source, re.MULTILINE)
