"""docker/prometheus and docker/grafana: alerts and dashboard, against what gradwire really shows.

The alerts are tested by Prometheus' own promtool, and loaded by a real Prometheus beside a real
master. There is no Grafana here: it is in no package of Debian. The dashboard is compared with the
types that Grafana publishes, and each of its queries is asked of that Prometheus.
"""

import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Dashboard
from prometheus_client import CollectorRegistry, start_http_server

import gradwire
from gradwire.metrics import SessionCollector
from gradwire_protocol.counters import Drop
from gradwire_protocol.messages.admission import RefusalCode
from gradwire_server.config import MasterConfig
from gradwire_server.metrics import Departure, HttpRefusal
from support.exposition import Exposition, exposition, training_worker
from support.local_master import MasterProcess
from support.prometheus import PrometheusServer, program_path
from support.promql import (
    OF_PROMETHEUS,
    OVER_COUNTERS,
    SERIES_OF_PROMETHEUS,
    grouping_labels,
    result_labels,
    selectors,
)
from support.waiting import wait_until

DOCKER = Path(__file__).parents[2] / "docker"
ALERTS_FILE = DOCKER / "prometheus" / "alerts.yml"
ALERTS: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load(ALERTS_FILE.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
ALERT_TESTS = yaml.safe_load((DOCKER / "prometheus" / "alerts_test.yml").read_text("utf-8"))
DASHBOARD: dict[str, Any] = json.loads(
    (DOCKER / "grafana" / "dashboards" / "gradwire.json").read_text(encoding="utf-8")
)
PANELS: list[dict[str, Any]] = [
    panel
    for top in DASHBOARD["panels"]
    for panel in [top, *top.get("panels", [])]
    if panel["type"] != "row"
]
QUERIES = [(panel["title"], target) for panel in PANELS for target in panel["targets"]]
VARIABLES: dict[str, dict[str, Any]] = {v["name"]: v for v in DASHBOARD["templating"]["list"]}

COLUMNS: Final = 24
"""Of Grafana's grid."""

OF_THE_PLUGIN: Final = {"/annotations/list[0]/titleFormat", "/annotations/list[0]/textFormat"}
"""What Grafana's Prometheus plugin reads, and the types of the dashboard do not have."""

ENUMERATIONS: Final[dict[str, type[StrEnum]]] = {
    "gradwire_leaves_total": Departure,
    "gradwire_datagrams_dropped_total": Drop,
    "gradwire_refusals_total": RefusalCode,
    "gradwire_http_refused_total": HttpRefusal,
}
"""The values that the label `reason` can have, by metric."""


SILENT: Final = {
    "Age of checkpoints", "Carried", "Datagrams dropped", "Joins and orders refused", "Merged",
    "Oldest checkpoint",
}  # fmt: skip
"""Panels that show nothing where nothing of the kind has happened: the master that is scraped has
no relay and no checkpoints, and refused nothing."""


OF_OPERATORS = {"pair"}
"""Labels that an operator gives to masters in Prometheus' configuration: docs/deploying.md."""


@pytest.fixture(scope="module")
def shown() -> Exposition:
    return exposition()


def expressions() -> Iterator[tuple[str, str]]:
    """Yield every PromQL expression of alerts and dashboard, with where it stands."""
    for alert in ALERTS:
        yield alert["alert"], alert["expr"]
    for title, target in QUERIES:
        yield title, target["expr"]
    for annotation in DASHBOARD["annotations"]["list"]:
        yield annotation["name"], annotation["expr"]
    for variable in VARIABLES.values():
        if variable["type"] == "query":
            yield f"${variable['name']}", label_values(variable)[0]


def label_values(variable: dict[str, Any]) -> tuple[str, str]:
    """Return the metric and the label that a variable takes its values from."""
    found = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
    assert found is not None
    return found[1], found[2]


def labels_of(shown: Exposition, metric: str) -> frozenset[str]:
    return SERIES_OF_PROMETHEUS.get(metric, shown.labels.get(metric, frozenset()))


def test_every_metric_and_label_of_an_expression_is_one_that_gradwire_shows(
    shown: Exposition,
) -> None:
    asked = [(where, each) for where, text in expressions() for each in selectors(text)]
    known = {*shown.labels, *SERIES_OF_PROMETHEUS}

    assert len(asked) > 150
    assert [(where, s.metric) for where, s in asked if s.metric not in known] == []
    assert [
        (where, s.metric, label)
        for where, s in asked
        for label in s.matched
        if label not in labels_of(shown, s.metric) | OF_PROMETHEUS
    ] == []
    assert [
        (where, label)
        for where, text in expressions()
        for label in grouping_labels(text)
        if label not in OF_PROMETHEUS | OF_OPERATORS
        and not any(label in labels_of(shown, s.metric) for s in selectors(text))
    ] == []
    for variable in VARIABLES.values():
        if variable["type"] == "query":
            text, label = label_values(variable)
            [selector] = selectors(text)
            assert label in labels_of(shown, selector.metric) | OF_PROMETHEUS


def test_counters_are_asked_for_how_they_grow_and_gauges_are_not(shown: Exposition) -> None:
    asked = [(where, each) for where, text in expressions() for each in selectors(text)]
    asked = [(where, s) for where, s in asked if s.metric not in SERIES_OF_PROMETHEUS]
    variables = {f"${name}" for name in VARIABLES}

    assert [
        (where, s.metric)
        for where, s in asked
        if (s.function in OVER_COUNTERS) != (s.metric in shown.counters) and where not in variables
    ] == []


def test_reasons_that_expressions_compare_with_exist() -> None:
    compared = [
        (s.metric, reason)
        for _, text in expressions()
        for s in selectors(text)
        if "reason" in s.matched
        for reason in s.matched["reason"].split("|")
    ]

    assert len(compared) > 10
    assert [
        (metric, reason)
        for metric, reason in compared
        if reason not in {str(each) for each in ENUMERATIONS[metric]}
    ] == []


# The dashboard.


def test_grafanas_own_types_know_every_field_of_the_dashboard() -> None:
    register_default_plugins()

    read = json.loads(JSONEncoder().encode(Dashboard.from_json(DASHBOARD)))

    assert set(lost(DASHBOARD, read, "")) == OF_THE_PLUGIN


def lost(written: Any, read: Any, path: str) -> Iterator[str]:
    """Yield where something that was written is not in what was read, or is something else."""
    match written, read:
        case dict(), dict():
            for name, value in written.items():
                yield from lost(value, read.get(name), f"{path}/{name}")
        case list(), list() if len(written) == len(read):
            for i, (one, other) in enumerate(zip(written, read, strict=True)):
                yield from lost(one, other, f"{path}[{i}]")
        case _:
            if written != read:
                yield path


def test_a_field_that_grafana_does_not_know_would_be_found() -> None:
    register_default_plugins()
    wrong = json.loads(json.dumps(DASHBOARD))
    panel = next(each for each in wrong["panels"] if each["type"] == "timeseries")
    panel["fieldConfig"]["defaults"]["units"] = panel["fieldConfig"]["defaults"].pop("unit")
    panel["options"]["legend"]["position"] = "bottom"

    read = json.loads(JSONEncoder().encode(Dashboard.from_json(wrong)))

    found = {path.rpartition("/")[2] for path in set(lost(wrong, read, "")) - OF_THE_PLUGIN}
    assert found == {"units", "position"}


def test_every_panel_has_a_unit_of_grafana_and_says_what_it_shows() -> None:
    known = {value for value in vars(units).values() if isinstance(value, str)}
    used = Counter(panel["fieldConfig"]["defaults"]["unit"] for panel in PANELS)

    assert len(PANELS) > 40
    assert used.keys() <= known
    assert {"Bps", "bytes", "ops", "percentunit", "s"} <= used.keys()
    assert [p["title"] for p in PANELS if not re.search(r"\w.*\.$", p["description"])] == []


def test_panels_stand_in_the_grid_and_not_on_one_another() -> None:
    ids = [panel["id"] for top in DASHBOARD["panels"] for panel in [top, *top.get("panels", [])]]
    taken: Counter[tuple[int, int]] = Counter()
    for panel in PANELS:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= COLUMNS, panel["title"]
        taken.update(
            (place["y"] + row, place["x"] + column)
            for row in range(place["h"])
            for column in range(place["w"])
        )

    assert len(ids) == len(set(ids))
    assert taken.most_common(1)[0][1] == 1
    for panel in PANELS:
        references = [target["refId"] for target in panel["targets"]]
        assert len(references) == len(set(references)), panel["title"]


def test_legends_have_labels_that_the_results_have(shown: Exposition) -> None:
    legends = [
        (title, label, result_labels(target["expr"], lambda metric: labels_of(shown, metric)))
        for title, target in QUERIES
        for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])
    ]

    assert len(legends) > 50
    assert [(title, label) for title, label, labels in legends if label not in labels] == []


def test_every_query_is_limited_to_what_the_reader_has_chosen(shown: Exposition) -> None:
    """A query without the variable would add up what other teams' masters do."""
    for title, target in QUERIES:
        for selector in selectors(target["expr"]):
            if selector.metric == "ALERTS":
                continue
            chosen = selector.matched["instance"]
            of_worker = selector.metric.startswith("gradwire_session_")
            assert chosen == ("$worker" if of_worker else "$instance"), title
            if "run" in labels_of(shown, selector.metric):
                assert selector.matched["run"] == "$run", (title, selector.metric)


def test_the_dashboard_shows_every_kind_of_trouble_that_has_an_alert() -> None:
    """Except what only Prometheus itself can tell."""
    drawn = {s.metric for _, target in QUERIES for s in selectors(target["expr"])}
    watched = {s.metric for alert in ALERTS for s in selectors(alert["expr"])}

    assert watched - drawn == {"gradwire_runs_failed_total", "gradwire_scalars_dropped_total"}


def test_grafana_finds_the_dashboard_and_the_data_source_where_compose_puts_them() -> None:
    services = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))["services"]
    mounted = dict(volume.split(":")[:2] for volume in services["grafana"]["volumes"])
    provisioning = DOCKER / "grafana" / "provisioning"
    [source] = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())[
        "datasources"
    ]
    [provider] = yaml.safe_load((provisioning / "dashboards" / "gradwire.yaml").read_text())[
        "providers"
    ]
    scraped = yaml.safe_load((DOCKER / "prometheus.yml").read_text(encoding="utf-8"))["global"]
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]

    assert mounted["./grafana/provisioning"] == "/etc/grafana/provisioning"
    assert mounted["./grafana/dashboards"] == provider["options"]["path"]
    assert Path(home).parent == Path(provider["options"]["path"])
    assert (DOCKER / "grafana" / "dashboards" / Path(home).name).exists()
    assert VARIABLES["datasource"]["current"]["value"] == source["uid"]
    assert source["type"] == VARIABLES["datasource"]["query"] == "prometheus"
    assert source["url"] == "http://prometheus:9090"
    assert services["prometheus"]["ports"] == ["127.0.0.1:9090:9090"]
    assert source["jsonData"]["timeInterval"] == scraped["scrape_interval"]


# The alerts.


def promtool(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    command = [program_path("promtool"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_promtool_finds_each_alert_to_fire_when_it_should_and_not_before() -> None:
    checked = promtool("check", "rules", ALERTS_FILE)
    tested = promtool("test", "rules", DOCKER / "prometheus" / "alerts_test.yml")

    assert f"{len(ALERTS)} rules found" in checked.stdout, checked.stderr
    assert checked.returncode == 0, checked.stderr
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_every_alert_is_tested_with_a_case_where_it_fires_and_one_where_it_is_still_quiet() -> None:
    quiet: set[str] = set()
    fires: set[str] = set()
    for case in ALERT_TESTS["tests"][1:]:
        for each in case["promql_expr_test"]:
            [name] = re.findall(r'alertname="(\w+)"', each["expr"])
            (fires if each["exp_samples"] else quiet).add(name)
        for each in case.get("alert_rule_test", []):
            (fires if each["exp_alerts"] else quiet).add(each["alertname"])
    names = [alert["alert"] for alert in ALERTS]
    healthy = {
        selector.metric
        for each in ALERT_TESTS["tests"][0]["input_series"]
        for selector in selectors(each["series"])
    }

    assert len(names) == len(set(names))
    assert fires == quiet == set(names)
    assert {s.metric for alert in ALERTS for s in selectors(alert["expr"])} <= healthy


def test_promtool_fails_where_a_threshold_is_moved(tmp_path: Path) -> None:
    rules = ALERTS_FILE.read_text(encoding="utf-8")
    assert "> 0.05" in rules
    (tmp_path / "alerts.yml").write_text(rules.replace("> 0.05", "> 0.5"), encoding="utf-8")
    tests = tmp_path / "alerts_test.yml"
    tests.write_text((DOCKER / "prometheus" / tests.name).read_text("utf-8"), encoding="utf-8")

    tested = promtool("test", "rules", tests)

    assert tested.returncode != 0
    assert "GradwirePacketLossHigh" in tested.stdout + tested.stderr


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: str(alert["alert"]))
def test_an_alert_says_what_is_wrong_and_what_to_do(
    alert: dict[str, Any], shown: Exposition
) -> None:
    annotations = alert["annotations"]
    text = " ".join(annotations.values())
    used = set(re.findall(r"\$labels\.(\w+)", text))
    there = result_labels(alert["expr"], lambda metric: labels_of(shown, metric))

    assert alert["alert"].startswith("Gradwire")
    assert annotations.keys() == {"summary", "description", "action"}
    assert alert["labels"].keys() == {"severity"}
    assert alert["labels"]["severity"] in ("critical", "warning", "info")
    assert re.search(r"[.]$", annotations["description"])
    assert re.search(r"[.]$|--\w", annotations["action"]) or ":" in annotations["action"]
    assert used <= there, "a label that is not there is shown as nothing"


def test_no_alert_has_a_template_that_fails(tmp_path: Path) -> None:
    """A template that fails shows its error in place of the text, and promtool is content."""
    (tmp_path / "alerts.yml").write_text(ALERTS_FILE.read_text("utf-8"), encoding="utf-8")
    for case in ALERT_TESTS["tests"]:
        names = {
            name
            for each in case["promql_expr_test"]
            for name in re.findall(r'alertname="(\w+)"', each["expr"])
        }
        last = case["promql_expr_test"][-1]["eval_time"]
        case["alert_rule_test"] = [
            {"alertname": name, "eval_time": last, "exp_alerts": [{"exp_labels": {"never": "so"}}]}
            for name in sorted(names)
        ]
        case["promql_expr_test"] = []
    tests = tmp_path / "alerts_test.yml"
    tests.write_text(yaml.safe_dump(ALERT_TESTS), encoding="utf-8")

    tested = promtool("test", "rules", tests)

    told = tested.stdout + tested.stderr
    assert told.count("severity=") > 20, "it shows the alerts that fire"
    assert "error expanding template" not in told


def test_alerts_know_the_defaults_of_the_master() -> None:
    config = MasterConfig()
    bounds = {alert["alert"]: alert["expr"] for alert in ALERTS}
    fifteen_checkpoints = 15 * config.checkpoint_seconds
    conflation_mib, reassembly_mib = (
        bytes_max // 2**20 for bytes_max in (config.conflation_bytes_max, config.reassembly_bytes)
    )

    assert f"> 0.8 * {conflation_mib} * 1024 * 1024" in bounds["GradwireConflationMemoryHigh"]
    assert f"> 0.8 * {reassembly_mib} * 1024 * 1024" in bounds["GradwireReassemblyMemoryHigh"]
    assert f"> {fifteen_checkpoints:g}" in bounds["GradwireCheckpointOld"]
    [queues] = [panel for panel in PANELS if panel["title"] == "Queues"]
    steps = queues["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert steps[-1]["value"] == config.relay_backlog_bytes_max


# Both in a real Prometheus.


def scrape_file(folder: Path, master: str, worker: str) -> Path:
    """Write our file for Prometheus, with the alerts beside it, for two targets on loopback."""
    (folder / "prometheus").mkdir()
    alerts = folder / "prometheus" / "alerts.yml"
    alerts.write_text(ALERTS_FILE.read_text("utf-8"), encoding="utf-8")
    config = yaml.safe_load((DOCKER / "prometheus.yml").read_text(encoding="utf-8"))
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    [job] = config["scrape_configs"]
    del job["authorization"]  # its master is on loopback; test_docker.py has one with a token
    job["static_configs"] = [{"targets": [master]}]
    workers = {"job_name": "workers", "static_configs": [{"targets": [worker]}]}
    config["scrape_configs"].append(workers)
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    return file


@contextmanager
def served(session: gradwire.Session) -> Iterator[str]:
    """Serve the metrics of a worker, as docs/metrics.md says; yield the address."""
    registry = CollectorRegistry()
    registry.register(SessionCollector(session))
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.deep("a real Prometheus, which scrapes a master and a worker")
@pytest.mark.timeout(180)
def test_a_real_prometheus_loads_the_alerts_and_answers_every_query_of_the_dashboard(
    tmp_path: Path,
) -> None:
    with (
        MasterProcess() as master,
        training_worker(master.address) as (session, step),
        training_worker(master.address) as (_, step_of_the_other),
        served(session) as worker,
        PrometheusServer(
            scrape_file(tmp_path, http := str(master.announcement["http"]), worker),
            tmp_path / "data",
        ) as prometheus,
    ):

        def train_until(query: str) -> bool:
            step()
            step_of_the_other()
            return bool(prometheus.query(query))

        wait_until(lambda: prometheus.health() == ["up", "up"], "both targets to be up", seconds=60)
        wait_until(
            lambda: train_until(
                "sum(rate(gradwire_relay_delay_seconds_count[5s]) > 0)"
                "and sum(rate(gradwire_session_steps_total[5s]) > 0)"
            ),
            "two scrapes of each while updates reach the other worker",
            seconds=60,
        )
        wait_until(
            lambda: all(rule["health"] == "ok" for rule in prometheus.rules()),
            "every alert to have been evaluated",
            seconds=60,
        )
        rules = {rule["name"] for rule in prometheus.rules()}
        values = variables_in(prometheus)
        answers = {
            (title, target["refId"]): prometheus.query(filled_in(target["expr"], values))
            for title, target in QUERIES
        }
        firing = prometheus.query('ALERTS{alertstate="firing"}')

    assert rules == {alert["alert"] for alert in ALERTS}
    assert firing == []
    assert values == {
        "instance": [http],
        "run": ["default"],
        "worker": [worker],
    }
    assert answers["Workers", "A"][0]["value"][1] == "2"
    assert answers["Masters up", "A"][0]["value"][1] == "1"
    answered = {title for (title, _), answer in answers.items() if answer}
    assert {panel["title"] for panel in PANELS} - answered <= SILENT


def variables_in(prometheus: PrometheusServer) -> dict[str, list[str]]:
    """Return the values that Grafana would offer for each variable."""
    found: dict[str, list[str]] = {}
    for name, variable in VARIABLES.items():
        if variable["type"] != "query":
            continue
        text, label = label_values(variable)
        answer = prometheus.query(filled_in(text, found))
        values = {each["metric"][label] for each in answer}
        found[name] = sorted(value for value in values if value)
    return found


def filled_in(expression: str, values: dict[str, list[str]]) -> str:
    """Return a query as Grafana would send it with all values of each variable chosen."""
    for name, chosen in values.items():
        expression = expression.replace(
            f"${name}", "|".join(map(re.escape, chosen)).replace("\\", "\\\\")
        )
    return expression.replace("$__rate_interval", "20s")
