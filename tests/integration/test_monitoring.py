"""docker/prometheus and docker/grafana, against the metrics that there are.

docs/metrics.md has these, and tests/unit/test_documentation.py holds it to the code.
"""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gradwire_server.metrics import Departure
from support.processes import completed
from support.prometheus import program_path

REPOSITORY = Path(__file__).parents[2]
DOCKER = REPOSITORY / "docker"
ALERTS_FILE = DOCKER / "prometheus" / "alerts.yml"
ALERTS: list[dict[str, Any]] = yaml.safe_load(ALERTS_FILE.read_text(encoding="utf-8"))["groups"][0][
    "rules"
]
DASHBOARD: dict[str, Any] = json.loads(
    (DOCKER / "grafana" / "dashboards" / "gradwire.json").read_text(encoding="utf-8")
)
QUERIES = [
    (panel["title"], target["expr"], target["legendFormat"])
    for panel in DASHBOARD["panels"]
    for target in panel["targets"]
]
EXPRESSIONS = [
    *((title, text) for title, text, _ in QUERIES),
    *((alert["alert"], alert["expr"]) for alert in ALERTS),
]

LABELS = {
    name: {"job", "instance", *filter(None, labels.split(", "))}
    for name, labels in re.findall(
        r"^\| `(\w+)` \| \w+ \| ([\w, ]*) \|",
        (REPOSITORY / "docs" / "metrics.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
}
"""Of each metric; Prometheus adds the first two."""

OTHERS = {"up", "process_cpu_seconds_total"}
"""Metrics that Prometheus and its client have."""

METRIC = re.compile(r"\b((?:gradwire|process)_\w+|up)\b(?:\{([^}]*)\})?")


def family(metric: str) -> str:
    return re.sub(r"_(bucket|sum|count)$", "", metric)


def test_every_metric_and_label_of_an_expression_is_one_that_a_master_has() -> None:
    asked = [
        (where, metric, set(re.findall(r"(\w+)=", matched or "")))
        for where, text in EXPRESSIONS
        for metric, matched in METRIC.findall(text)
    ]

    assert len(asked) > 50
    assert [(w, m) for w, m, _ in asked if family(m) not in LABELS and m not in OTHERS] == []
    assert [
        (where, metric, labels)
        for where, metric, labels in asked
        if not labels <= LABELS.get(family(metric), {"job", "instance"})
    ] == []
    reasons = [set(each.split("|")) for _, text in EXPRESSIONS
               for each in re.findall(r'reason=~"([^"]*)"', text)]  # fmt: skip
    assert reasons
    assert all(each <= set(Departure) for each in reasons)


def test_counters_and_only_counters_are_asked_for_how_they_grow() -> None:
    for where, text in EXPRESSIONS:
        grown = set(re.findall(r"(?:rate|increase)\((\w+)", text))
        counters = {m for m, _ in METRIC.findall(text) if re.search("_(total|bucket)$", m)}
        assert grown == counters, where


def test_legends_have_labels_that_the_results_have() -> None:
    for title, text, legend in QUERIES:
        kept = [set(each.split(", ")) for each in re.findall(r"by \(([^)]*)\)", text)]
        metrics = [LABELS.get(family(m), {"instance"}) for m, _ in METRIC.findall(text)]
        there = set.intersection(*kept) if kept else set.intersection(*metrics)
        assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= there, title


def test_the_dashboard_is_small_and_each_panel_says_what_it_shows() -> None:
    panels = DASHBOARD["panels"]
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}

    assert len(panels) <= 12
    assert len(places) == len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["description"].endswith(".") for panel in panels)


def test_the_containers_find_each_other_and_their_files() -> None:
    services = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))["services"]
    provisioning = DOCKER / "grafana" / "provisioning"
    sources = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())
    providers = yaml.safe_load((provisioning / "dashboards" / "gradwire.yaml").read_text())
    scraped = yaml.safe_load((DOCKER / "prometheus.yml").read_text(encoding="utf-8"))
    mounted = dict(volume.split(":")[:2] for volume in services["grafana"]["volumes"])
    of_prometheus = dict(volume.split(":")[:2] for volume in services["prometheus"]["volumes"])
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    [source] = sources["datasources"]
    [provider] = providers["providers"]
    [rules] = scraped["rule_files"]
    chosen = DASHBOARD["templating"]["list"][0]["current"]["value"]

    assert mounted["./grafana/provisioning"] == "/etc/grafana/provisioning"
    assert mounted["./grafana/dashboards"] == provider["options"]["path"] == str(Path(home).parent)
    assert of_prometheus[f"./{rules}"] == f"/etc/prometheus/{rules}"
    assert source["uid"] == chosen
    assert source["url"] == "http://prometheus:9090"
    assert source["jsonData"]["timeInterval"] == scraped["global"]["scrape_interval"]


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: str(alert["alert"]))
def test_an_alert_says_what_is_wrong_and_what_to_do(alert: dict[str, Any]) -> None:
    annotations = alert["annotations"]

    assert annotations.keys() == {"summary", "action"}
    assert alert["labels"]["severity"] in ("critical", "warning")
    assert annotations["action"].endswith(".")
    there = set.union(
        *(LABELS.get(family(m), {"instance"}) for m, _ in METRIC.findall(alert["expr"]))
    )
    assert set(re.findall(r"\$labels\.(\w+)", str(annotations))) <= there


@pytest.mark.deep("promtool, which is downloaded")
def test_promtool_finds_each_alert_to_fire_when_it_should_and_not_before() -> None:
    try:
        promtool = program_path("promtool")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no promtool, and Debian's package prometheus cannot be had: {error}")
    tests = ALERTS_FILE.with_name("alerts_test.yml")

    tested = completed([promtool, "test", "rules", str(tests)])

    assert tested.returncode == 0, tested.stdout + tested.stderr
    text = tests.read_text(encoding="utf-8")
    assert [alert["alert"] for alert in ALERTS if alert["alert"] not in text] == []
