"""The documentation says what is there: commands, options, settings, variables, metrics.

`make docs` looks at links. Tables between ``begin`` and ``end`` marks are generated; where one is
out of date, the test says how to renew it: ``make tables``.
"""

import ast
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from typer.main import get_command

from benchmarks import record
from gradwire import Session, SessionStats, Settings, join
from gradwire.cli.app import app
from gradwire.cli.commands import Commands, DeferredCommand
from gradwire.metrics import SessionCollector
from gradwire.optimizer.delays import Histogram
from gradwire_codecs import ResidualStatistics
from gradwire_protocol import Endpoint
from gradwire_protocol.settings import declared_settings
from gradwire_server.config import MasterConfig
from gradwire_server.daemon.collector import SocketsCollector
from gradwire_server.metrics import ServerMetrics
from gradwire_server.runs.collector import RunsCollector
from gradwire_server.runs.runs import Runs
from gradwire_udp import SocketCounters

REPOSITORY = Path(__file__).parents[2]

LONGER = {
    "ARCHITECTURE.md": 14 * 1024,  # what one reads before changing code
    "docs/benchmarks.md": 64 * 1024,
    "docs/commands.md": 64 * 1024,  # generated, as the next three are
    "docs/metrics.md": 64 * 1024,
    "docs/mistakes.md": 16 * 1024,
    "docs/transcripts.md": 16 * 1024,
}
"""How many bytes a page may have that has more than others of its kind."""

PAGES = {
    str(path.relative_to(REPOSITORY)): path.read_text(encoding="utf-8")
    for path in [
        *REPOSITORY.glob("*.md"),
        *REPOSITORY.glob("protocol/*.md"),
        *REPOSITORY.glob("docs/**/*.md"),
    ]
}
"""All documentation that the site has, by its file."""

RIGHT = {page: text for page, text in PAGES.items() if page != "docs/mistakes.md"}
"""Pages in which what is written down is right: one has mistakes."""

SOURCES = sorted(REPOSITORY.glob("*/gradwire*/**/*.py"))


def settings_table() -> str:
    """Return the table of settings."""
    rows = ["| setting | default | |", "| --- | --- | --- |"]
    for name, each in declared_settings(Settings).items():
        default = "" if each.default in (None, "") else f"`{each.default}`"
        rows.append(f"| `{name}` | {default} | {each.about.text.replace('`', '')} |")
    return "\n".join(rows)


def commands() -> dict[str, Any]:
    """Return every command of the command line, imported."""
    group = get_command(app)
    assert isinstance(group, Commands)
    found = {name: group.get_command(None, name) for name in group.list_commands(None)}
    return {name: c.load() for name, c in found.items() if isinstance(c, DeferredCommand)}


def command_reference(name: str) -> str:
    """Return what a command says of itself, and the table of its arguments and options."""
    command = commands()[name]
    rows = ["| | variable | default | |", "| --- | --- | --- | --- |"]
    for each in command.params:
        if each.name == "help":
            continue
        if each.param_type_name == "argument":
            shown = f"{each.metavar or each.name}"
        else:
            shown = ", ".join(each.opts) + (f" {each.metavar}" if each.metavar else "")
        variable = f"`{each.envvar}`" if each.envvar else ""
        default = "" if each.default in (None, ()) or each.required else f"`{each.default}`"
        rows.append(f"| `{shown}` | {variable} | {default} | {each.help} |")
    about = "\n\n".join(" ".join(part.split()) for part in command.help.split("\n\n"))
    return f"{about}\n\n" + "\n".join(rows)


def metrics_table() -> str:
    """Return the table of metrics."""
    metrics = ServerMetrics()
    endpoint = Endpoint(MasterConfig().connection, random_bytes=bytes)
    runs = Runs(MasterConfig(), metrics)
    metrics.registry.register(
        SocketsCollector(runs.first.terms, endpoint.counters, SocketCounters())
    )
    metrics.registry.register(RunsCollector(runs))
    of_runs = {family.name for family in RunsCollector(runs).collect()}
    rows = ["| metric | type | labels | |", "| --- | --- | --- | --- |"]
    for family in sorted(metrics.registry.collect(), key=lambda f: f.name):
        if not family.name.startswith("gradwire_"):
            continue
        suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
        labels = {"leaves": "reason", "refusals": "reason", "http_refused": "reason",
                  "datagrams_dropped": "reason",
                  "relay_queue_bytes": "rank", "rtt_seconds": "rank",
                  "build": "version"}.get(family.name.removeprefix("gradwire_"), "")  # fmt: skip
        if family.name in of_runs:
            labels = f"run, {labels}" if labels else "run"
        rows.append(
            f"| `{family.name}{suffix}` | {family.type} | {labels} | {family.documentation} |"
        )
    return "\n".join(rows)


def session_metrics_table() -> str:
    """Return the table of what a worker's collector has."""
    session = Mock(spec=Session)
    numbers = {f.name: 0 for f in fields(SessionStats)}
    residual = ResidualStatistics.of(np.empty(0, np.float32), 1.0)
    distributions = {
        f.name: Histogram().distribution()
        for f in fields(SessionStats)
        if f.name.endswith("distribution")
    }
    others = {"residual": residual, "staleness_by_rank": {0: 0.0}, **distributions}
    session.stats = SessionStats(**numbers | others)  # type: ignore[arg-type]
    rows = ["| metric | type | labels | |", "| --- | --- | --- | --- |"]
    for family in sorted(SessionCollector(session).collect(), key=lambda f: f.name):
        suffix = "_total" if family.type == "counter" else ""
        labels = ", ".join(label for label in family.samples[0].labels if label != "le")
        rows.append(
            f"| `{family.name}{suffix}` | {family.type} | {labels} | {family.documentation} |"
        )
    return "\n".join(rows)


GENERATED: dict[tuple[str, str], Callable[[], str]] = {
    ("docs/metrics.md", "session metrics"): session_metrics_table,
    ("docs/settings.md", "settings"): settings_table,
    ("docs/metrics.md", "metrics"): metrics_table,
    **{
        ("docs/commands.md", f"gradwire {name}"): partial(command_reference, name)
        for name in commands()
    },
}


FIGURE_TABLES: dict[tuple[str, str], Callable[[], str]] = {
    (page, mark): partial(record.table, mark, record.read())
    for page, text in PAGES.items()
    for mark in record.marks(text)
}
"""These depend on more than this checkout: on the commits that figures are from."""


def between_marks(text: str, name: str) -> str:
    return text.split(f"<!-- {name}: begin -->\n")[1].split(f"<!-- {name}: end -->")[0]


@pytest.mark.parametrize(("file", "name"), GENERATED)
def test_generated_tables_are_current(file: str, name: str) -> None:
    text = (REPOSITORY / file).read_text(encoding="utf-8")

    assert between_marks(text, name).strip() == GENERATED[file, name](), (
        "renew it with: make tables"
    )


@pytest.mark.parametrize(("page", "mark"), FIGURE_TABLES)
def test_a_table_of_figures_has_what_the_file_has(page: str, mark: str) -> None:
    shown = record.without_marks(between_marks(PAGES[page], mark).strip())

    assert shown == record.table(mark, record.read(), old=lambda _: False), (
        "renew it with: make tables"
    )


def test_a_page_shows_no_more_figures_than_people_read() -> None:
    rows = Counter(
        page
        for page, mark in FIGURE_TABLES
        for line in between_marks(PAGES[page], mark).splitlines()[3:]
        if line.startswith("|")
    )

    assert rows["docs/benchmarks.md"] > 0
    assert max(rows.values()) <= 40


def test_every_setting_is_a_keyword_of_join_and_the_other_way_round() -> None:
    keywords = set(signature(join).parameters) - {"target", "optimizer", "config"}

    assert (
        keywords == set(declared_settings(Settings)) == {field.name for field in fields(Settings)}
    )


def test_every_option_has_a_help_text() -> None:
    missing = [
        f"{name} {parameter.name}"
        for name, command in commands().items()
        for parameter in command.params
        if not parameter.help
    ]

    assert missing == []
    assert all(command.help for command in commands().values())


def code_in(text: str) -> str:
    """Return what stands in backticks or in a block of code, a line each."""
    blocks = re.findall(r"```\w*\n(.*?)```", text, re.DOTALL)
    outside = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return "\n".join([*blocks, *re.findall(r"`([^`\n]+)`", outside), ""])


def test_every_command_of_the_command_line_and_of_make_that_is_written_down_exists() -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    found = {
        name: [
            *set(re.findall(r"`?gradwire ([a-z]+)\b(?= -|`|\n)", code_in(text)))
            - commands().keys(),
            *[
                target
                for pair in re.findall(r"^\$ make ([\w-]+)|`make ([\w-]+)", text, re.MULTILINE)
                for target in pair
                if target and f"\n{target}:" not in makefile
            ],
        ]
        for name, text in PAGES.items()
    }

    assert {name: unknown for name, unknown in found.items() if unknown} == {}


def test_every_option_that_is_written_down_behind_a_command_is_one_of_it() -> None:
    known = {
        name: {option for each in command.params for option in each.opts}
        for name, command in commands().items()
    }
    written = [
        (page, command, option)
        for page, text in RIGHT.items()
        for command, rest in re.findall(
            r"gradwire ([a-z]+)((?: (?!-- )[^\s`|;)]+)+)", code_in(text)
        )
        for option in re.findall(r" (--?[a-z][\w-]*)", rest)
        if command in known
    ]

    assert len(written) > 50
    assert [(page, c, option) for page, c, option in written if option not in known[c]] == []


def test_every_variable_that_is_written_down_is_read_somewhere() -> None:
    sources = "".join(source.read_text(encoding="utf-8") for source in SOURCES)
    known = {f"GRADWIRE_{name.upper()}" for name in declared_settings(Settings)}
    known |= {each.envvar for command in commands().values() for each in command.params}
    written = {
        (page, variable)
        for page, text in RIGHT.items()
        for variable in re.findall(r"\bGRADWIRE_[A-Z_]+[A-Z]\b", text)
    }

    assert len(written) > 50
    assert [
        each for each in written if each[1] not in known and f'"{each[1]}"' not in sources
    ] == []


def test_every_snippet_is_python_and_joins_with_settings_that_exist() -> None:
    settings = {*declared_settings(Settings), "optimizer", "config"}
    snippets = [
        snippet
        for text in PAGES.values()
        for snippet in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        if not snippet.startswith(">>>")  # `make check` runs these
    ]
    calls = [
        {each.arg for each in node.keywords}
        for snippet in snippets
        for node in ast.walk(ast.parse(snippet))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "gradwire.join"
    ]

    assert len(calls) > 5
    assert [keywords - settings for keywords in calls if not keywords <= settings] == []


def size_max(page: str) -> int:
    """Return how many bytes a page may have: people read a page to its end, or not at all."""
    if page.startswith("docs/decisions/") and not page.endswith("README.md"):
        return LONGER.get(page, 2 * 1024)
    return LONGER.get(page, 8 * 1024)


@pytest.mark.parametrize("page", sorted(PAGES))
def test_a_page_stays_short(page: str) -> None:
    assert len(PAGES[page].encode()) <= size_max(page)


def test_the_changelog_has_what_a_user_gets_and_no_more() -> None:
    assert PAGES["CHANGELOG.md"].count("\n") <= 60


def test_tests_that_show_what_a_page_says_are_there() -> None:
    named = {
        each for text in PAGES.values() for each in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    }
    missing = [
        f"{file}::{test}"
        for file, test in named
        if not re.search(
            rf"^(async def|def|class) {test}\b|^{test} =",
            (REPOSITORY / file).read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    ]

    assert len(named) > 50
    assert missing == []


def renew() -> None:
    """Write the generated tables anew."""
    for (file, name), make in {**GENERATED, **FIGURE_TABLES}.items():
        path = REPOSITORY / file
        text = path.read_text(encoding="utf-8")
        path.write_text(
            text.replace(
                f"begin -->\n{between_marks(text, name)}<!-- {name}: end",
                f"begin -->\n\n{make()}\n\n<!-- {name}: end",
            ),
            encoding="utf-8",
        )


if __name__ == "__main__":
    renew()
