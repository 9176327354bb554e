"""The documentation says what is there: options, settings, metrics, files, exit statuses.

The tables between ``begin`` and ``end`` marks are generated; where one is out of date, the test
says how to renew it: ``make tables``.
"""

import ast
import re
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import yaml
from typer.main import get_command

from benchmarks.registry import BENCHMARKS
from gradwire import Session, SessionStats, Settings, join
from gradwire.cli.app import app
from gradwire.cli.commands import Commands, DeferredCommand
from gradwire.metrics import SessionCollector
from gradwire.optimizer.delays import Histogram
from gradwire_codecs import ResidualStatistics
from gradwire_protocol import Connection, Endpoint
from gradwire_protocol.settings import declared_settings
from gradwire_server.config import MasterConfig
from gradwire_server.daemon.announcer import Announcer
from gradwire_server.daemon.announcing import Announcing
from gradwire_server.daemon.collector import SocketsCollector
from gradwire_server.daemon.relay_daemon import RelayCollector
from gradwire_server.intermediary.intermediary import Intermediary
from gradwire_server.metrics import RunMetrics, ServerMetrics
from gradwire_server.runs.collector import RunsCollector
from gradwire_server.runs.runs import Runs
from gradwire_udp import SocketCounters
from gradwire_udp.discovery.file import FilePlace

REPOSITORY = Path(__file__).parents[2]

ARCHITECTURE_BYTES_MAX = 14 * 1024
"""What one reads before changing code, and no more; why things are so stands in docs/decisions."""

README_BYTES_MAX = 8 * 1024
"""What gradwire is for, and how to begin; everything else is a page of docs/."""

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


def a_relay() -> Intermediary:
    """Return a relay that does not dial yet."""
    config = MasterConfig()
    dial: Callable[[str, float], Connection] = Mock()
    return Intermediary(config, RunMetrics(), "here:1", "there:1", dial, 0.0)


def metrics_table() -> str:
    """Return the table of metrics."""
    metrics = ServerMetrics()
    endpoint = Endpoint(MasterConfig().connection, random_bytes=bytes)
    runs = Runs(MasterConfig(), metrics)
    metrics.registry.register(
        SocketsCollector(runs.first.terms, endpoint.counters, SocketCounters())
    )
    metrics.registry.register(RunsCollector(runs))
    metrics.registry.register(RelayCollector(a_relay()))
    announcing = Announcing(FilePlace(Path("run.json")), None, {})
    metrics.registry.register(Announcer(announcing, lambda: (None, {}), lambda: "a:1"))
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


def alerts_table() -> str:
    """Return the table of the alerts, with capitals for what differs."""
    file = REPOSITORY / "docker" / "prometheus" / "alerts.yml"
    rows = ["| alert | severity | says | do |", "| --- | --- | --- | --- |"]
    for group in yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]:
        for rule in group["rules"]:
            notes = {name: " ".join(text.split()) for name, text in rule["annotations"].items()}
            says = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda m: m[1].upper(), notes["summary"])
            says = re.sub(r"\{\{ \$value.*?\}\}", "N", says)
            severity = rule["labels"]["severity"]
            rows.append(f"| `{rule['alert']}` | {severity} | {says}. | {notes['action']} |")
    return "\n".join(rows)


GENERATED: dict[tuple[str, str], Callable[[], str]] = {
    ("docs/metrics.md", "session metrics"): session_metrics_table,
    ("docs/settings.md", "settings"): settings_table,
    ("docs/metrics.md", "metrics"): metrics_table,
    ("docs/deploying.md", "alerts"): alerts_table,
    **{
        ("docs/commands.md", f"gradwire {name}"): partial(command_reference, name)
        for name in commands()
    },
}


def between_marks(text: str, name: str) -> str:
    return text.split(f"<!-- {name}: begin -->\n")[1].split(f"<!-- {name}: end -->")[0]


@pytest.mark.parametrize(("file", "name"), GENERATED)
def test_generated_tables_are_current(file: str, name: str) -> None:
    text = (REPOSITORY / file).read_text(encoding="utf-8")

    assert between_marks(text, name).strip() == GENERATED[file, name](), (
        "renew it with: make tables"
    )


def test_every_setting_is_a_keyword_of_join_and_the_other_way_round() -> None:
    keywords = set(signature(join).parameters) - {"target", "optimizer", "config"}

    assert (
        keywords
        == set(declared_settings(Settings))
        == {field.name for field in fields(Settings)} - {"given"}
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


def test_every_benchmark_that_is_written_down_exists_and_each_is_on_the_page_about_them() -> None:
    written = {
        page: {
            name
            for names in re.findall(r"python tests/benchmarks((?: [a-z][a-z-]+)+)", text)
            for name in names.split()
        }
        for page, text in PAGES.items()
    }

    assert set().union(*written.values()) == {*BENCHMARKS, "all"}
    assert written["docs/benchmarks.md"] >= set(BENCHMARKS)


def test_files_that_the_documentation_names_exist() -> None:
    missing = {
        page: [
            *[
                link
                for link in re.findall(r"\]\((?!http|#)([^)#]+)", text)
                if not (REPOSITORY / page).parent.joinpath(link).exists()
            ],
            *[
                path
                for path in re.findall(
                    r"`((?:docs|docker|tests|server|client|protocol)/[\w./-]*)`", text
                )
                if not (REPOSITORY / path).exists()
            ],
        ]
        for page, text in PAGES.items()
        if page != "CHANGELOG.md"  # it tells what was there once
    }

    assert {page: names for page, names in missing.items() if names} == {}


def test_the_readme_stays_short() -> None:
    assert len(PAGES["README.md"].encode()) <= README_BYTES_MAX


def test_the_commands_for_two_machines_are_the_same_wherever_they_are() -> None:
    """`tests/integration/test_two_machines.py` types those of README."""
    sections = [
        PAGES["README.md"].split("\n## On two machines\n")[1],
        PAGES["docs/get-started.md"].split("\n## Two machines\n")[1],
    ]
    typed = [re.findall(r"^\$ (.*)$", each.split("\n## ")[0], re.MULTILINE) for each in sections]

    assert len(typed[0]) == 4
    assert typed[0] == typed[1]


def message_templates() -> set[str]:
    """Return all text that the product's code holds, with … for what is put into it."""
    found = set()
    for source in SOURCES:
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            match node:
                case ast.JoinedStr(values=values):
                    parts = [str(v.value) if isinstance(v, ast.Constant) else "…" for v in values]
                    found.add("".join(parts).replace("`", ""))
                case ast.Constant(value=str(text)):
                    found.add(re.sub(r"%[.\d]*[a-z]", "…", text).replace("`", ""))
    return found


def test_every_message_that_troubleshooting_explains_is_one_of_ours() -> None:
    text = PAGES["docs/troubleshooting.md"]
    templates = message_templates()
    rows = re.findall(r"^\| (?!message|---)(.*?) \| ", text, re.MULTILINE)
    messages = [message for row in rows for message in re.findall(r"`([^`]+)`", row)]
    beginnings = {m: re.compile(".*?".join(map(re.escape, m.split("…")))) for m in messages}

    assert len(messages) >= len(rows) > 100
    assert [m for m, b in beginnings.items() if not any(map(b.match, templates))] == []


def test_the_glossary_has_every_word_of_the_architecture() -> None:
    words, explained = (
        {
            word
            for row in re.findall(r"^\| ([^|]*) \| ", text, re.MULTILINE)
            for word in row.split(", ")
        }
        for text in (PAGES["ARCHITECTURE.md"].split("\n## The parts")[0], PAGES["docs/glossary.md"])
    )

    assert len(words) > 20
    assert words - {"we say", "---"} <= explained


def code_in(text: str) -> str:
    """Return what stands in backticks or in a block of code, a line each."""
    blocks = re.findall(r"```\w*\n(.*?)```", text, re.DOTALL)
    outside = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return "\n".join([*blocks, *re.findall(r"`([^`\n]+)`", outside), ""])


def test_files_that_the_architecture_names_exist_and_it_stays_short() -> None:
    text = (REPOSITORY / "ARCHITECTURE.md").read_text(encoding="utf-8")
    roots = [REPOSITORY, *REPOSITORY.glob("*/gradwire*")]
    roots += [root.parent for root in roots[1:]]

    named = re.findall(r"`((?:\w+/)+[\w.]*)`", text)

    assert [n for n in named if not any((root / n).exists() for root in roots)] == []
    assert len(text.encode()) <= ARCHITECTURE_BYTES_MAX


def test_every_decision_has_a_page_in_the_list() -> None:
    folder = REPOSITORY / "docs" / "decisions"
    listed = re.findall(r"\]\(([\w-]+\.md)\)", (folder / "README.md").read_text(encoding="utf-8"))

    assert sorted(listed) == sorted(f.name for f in folder.glob("*.md") if f.name != "README.md")


def test_tests_that_the_promises_name_exist() -> None:
    text = (REPOSITORY / "docs" / "guarantees.md").read_text(encoding="utf-8")
    sections = text.split("\n## ")[1:]

    for section in sections:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", section)
        assert named, f"nothing shows this: {section.splitlines()[0]}"
        for file, test in named:
            source = (REPOSITORY / file).read_text(encoding="utf-8")
            assert re.search(rf"^def {test}\b", source, re.MULTILINE), f"{file} has no {test}"


def test_tests_that_each_kind_of_training_loop_names_exist() -> None:
    text = (REPOSITORY / "docs" / "training_loops.md").read_text(encoding="utf-8")
    shorts = dict(re.findall(r"`([A-Z])` is `(tests/[\w/]+\.py)`", text))
    tables = re.findall(r"^\| .*\n\| ---.*\n((?:\| .*\n)+)", text, re.MULTILINE)

    assert len(tables) == text.count("\n| ---")
    for row in [row for table in tables for row in table.splitlines()]:
        assert "::test_" in row.split("|")[-2], f"nothing shows this: {row}"
    for file, test in re.findall(r"`([A-Z]|tests/[\w/]+\.py)::(\w+)`", text):
        source = (REPOSITORY / shorts.get(file, file)).read_text(encoding="utf-8")
        assert re.search(rf"^def {test}\b", source, re.MULTILINE), f"{file} has no {test}"


def renew() -> None:
    """Write the generated tables anew."""
    for (file, name), make in GENERATED.items():
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
