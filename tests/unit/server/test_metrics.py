"""Metrics: their names keep the conventions, and they count what they say."""

import re
from dataclasses import fields
from functools import partial

import numpy as np
import pytest
from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from gradwire_codecs import Replica, encode
from gradwire_protocol import CloseCode, Counters, Drop
from gradwire_protocol.limits import FINISHED_RANGES_MAX
from gradwire_protocol.messages.admission import RefusalCode
from gradwire_protocol.messages.link import EntriesReceived
from gradwire_server.config import MasterConfig
from gradwire_server.daemon.collector import SocketsCollector
from gradwire_server.metrics import Departure, RunMetrics
from gradwire_server.runs.collector import RunsCollector
from gradwire_udp import SocketCounters, TcpCounters
from support.network import Link
from support.training import MASTER, SimulatedRun

UNITS = ("_bytes", "_seconds", "_ratio", "_info")
THINGS = (
    # Counted things are a unit of their own: the plural of what is counted.
    "_workers",
    "_in_charge",
    "_announced",
    "_connected",
    "_term",
    "_observers",
    "_relays",
    "_parameters",
    "_blocks",
    "_updates",
    "_unstable",
    "_connections",
    "_runs",
    "_items",
)


def show(
    run: SimulatedRun, sockets: SocketCounters | None = None, streams: TcpCounters | None = None
) -> None:
    """Have a run's metrics tell, too, what a daemon's collectors read."""
    counters = run.master_endpoint.counters
    collector = SocketsCollector(run.master.terms, counters, sockets or SocketCounters(), streams)
    run.runs.metrics.registry.register(collector)


@pytest.fixture(scope="module")
def families() -> list[Metric]:
    """Every family that a running master shows, but for those of prometheus_client."""
    run = SimulatedRun()
    run.join_and_wait(2)
    run.train(1)
    show(run)
    for reason in Departure:
        run.metrics.leaves.labels(reason)
    run.runs.metrics.registry.register(RunsCollector(run.runs))
    shown = text_string_to_metric_families(generate_latest(run.runs.metrics.registry).decode())
    foreign = ("python_", "process_")
    return [f for f in shown if not f.name.startswith(foreign) and "_created" not in f.name]


# Names.


def test_every_metric_keeps_the_conventions_for_names(families: list[Metric]) -> None:
    """Small letters and a prefix; counters and only counters end in total, and others in a unit."""
    assert len(families) > 30
    for family in families:
        assert re.fullmatch(r"gradwire(_[a-z]+)+", family.name)
        ends = {s.name.endswith("_total") for s in family.samples if "_created" not in s.name}
        assert ends <= {family.type == "counter"}, family.name
        assert family.type == "counter" or family.name.endswith(UNITS + THINGS), family.name


def test_labels_come_from_closed_sets(families: list[Metric]) -> None:
    used = {name for family in families for s in family.samples for name in s.labels}

    assert used == {"run", "reason", "rank", "le", "version"}


# Counts.


def test_staleness_counts_the_updates_of_others_that_an_update_did_not_know() -> None:
    """One worker sends three updates; another, which has seen one of them, sends one then."""
    run = SimulatedRun(3, elements=10)
    run.join_and_wait(1)
    one, other = run.enter("one"), run.enter("other")
    [body] = encode(np.ones(10, np.float32), Replica.zeros(10), threshold=1.0)

    for sequence in (1, 2, 3):
        one.say_update(1, sequence, body)
        other.wait_for(EntriesReceived)
    other.say_update(2, 1, body, based_on=1)
    one.wait_for(EntriesReceived, 1)

    histogram = partial(run.sample, "update_staleness_updates_bucket")
    assert run.sample("update_staleness_updates_sum") == 2
    assert [histogram(le=le) for le in ("0.0", "1.0", "2.0", "+Inf")] == [3, 3, 4, 4]


def test_a_broken_transport_counts_as_a_fault() -> None:
    run = SimulatedRun(5)
    run.join_and_wait(1)
    rogue = run.enter()

    [body] = encode(np.ones(run.elements, np.float32), Replica.zeros(run.elements), threshold=1.0)
    for sequence in range(2, 2 * FINISHED_RANGES_MAX + 5, 2):
        rogue.say_update(1, sequence, body)
    end = rogue.wait_for_end()
    run.network.run(lambda: len(run.master.roster) == 1, seconds=10)

    assert end.code == CloseCode.VIOLATION
    assert run.master_endpoint.counters.violations == 1
    assert run.sample("messages_invalid_total") == 0
    assert run.sample("leaves_total", reason="fault") == 1


# What is counted elsewhere.


def test_the_collector_shows_the_counters_of_socket_and_endpoint() -> None:
    run = SimulatedRun(7, Link(loss=0.1))
    run.join_and_wait(2)
    run.train(20)
    sockets = SocketCounters(*range(1, 1 + len(fields(SocketCounters))))
    named = {
        "bytes_received": "received_bytes",
        "bytes_sent": "sent_bytes",
        "reads": "socket_reads",
        "trains_sent": "socket_writes",
        "receive_drops": "receive_buffer_drops",
        "oversize": "datagrams_oversize",
        "gso_fallbacks": "segmentation_fallbacks",
    }
    not_shown = {"marked", "truncated"}
    counters = run.master_endpoint.counters
    counters.count_drop(Drop.SHORT)

    show(run, sockets)

    for field in fields(SocketCounters):
        name = named.get(field.name, field.name)
        if name not in not_shown:
            assert run.sample(f"{name}_total") == getattr(sockets, field.name)
    for field in fields(Counters):
        if field.name not in ("drops", "refused"):
            assert run.sample(f"{field.name}_total") == getattr(counters, field.name)
    for reason, value in counters.drops.items():
        assert run.sample("datagrams_dropped_total", reason=reason.value) == value
    assert counters.drops[Drop.SHORT] == 1
    assert counters.packets_lost > 0


def conflated(run: SimulatedRun) -> tuple[float, float]:
    """Return for how many members updates are added up, and the bytes of that."""
    return run.sample("conflated_workers"), run.sample("conflation_bytes")


def test_the_collector_shows_for_whom_updates_are_added_up() -> None:
    run = SimulatedRun(8, master=MasterConfig(relay_backlog_bytes_max=20_000))
    run.join_and_wait(3)
    slow = run.workers[0]
    show(run)
    run.train(3)
    shown = [conflated(run)]
    run.network.set_link(MASTER, slow.name, Link(loss=1.0))
    run.train(20)
    shown.append(conflated(run))
    run.network.set_link(MASTER, slow.name, Link())
    run.network.run(lambda: run.master.unstable == 0, seconds=60)
    shown.append(conflated(run))

    assert shown == [(0, 0), (1, 0), (0, 0)], "the log has room for what it lacks"
    assert run.sample("sums_sent_total") == slow.sums > 0
    passed_on = [run.sample(f"updates_{how}_total") for how in ("relayed", "conflated")]
    assert sum(passed_on) == 2 * sum(worker.sent for worker in run.workers)
    run.finish()


def test_the_collector_shows_what_waits_for_every_worker() -> None:
    run = SimulatedRun(8, elements=10)
    run.join_and_wait(2)
    rogue = run.enter()
    run.network.run_for(1.0)
    show(run)
    assert run.sample("updates_unstable") == 0

    # The first worker hears nothing any more.
    run.network.on_datagram = lambda source, target, _: target != "worker0"
    [body] = encode(np.ones(10, np.float32), Replica.zeros(10), threshold=1.0)
    rogue.say_update(2, 1, body)
    run.network.run_for(1.0)

    queued = [run.sample("relay_queue_bytes", rank=str(rank)) for rank in range(3)]
    assert queued[1:] == [0, 0]
    assert queued[0] > len(body)
    assert run.sample("updates_unstable") == 1
    assert run.sample("reassembly_bytes") == 0
    for rank in range(3):
        rtt = run.sample("rtt_seconds", rank=str(rank))
        assert rtt == pytest.approx(2 * run.network.link.delay, abs=0.01)


def test_the_collector_shows_what_goes_over_tcp() -> None:
    run = SimulatedRun(9)
    streams = TcpCounters(*range(1, 1 + len(fields(TcpCounters))))
    named = {
        "accepted": "connections_accepted_total",
        "turned_away": "connections_turned_away_total",
        "violations": "violations_total",
        "broken": "connections_broken_total",
        "open": "connections",
        "packets_received": "packets_received_total",
        "bytes_received": "received_bytes_total",
        "packets_sent": "packets_sent_total",
        "bytes_sent": "sent_bytes_total",
        "queued_bytes": "queue_bytes",
    }

    show(run, streams=streams)

    for field, name in named.items():
        assert run.sample(f"tcp_{name}") == getattr(streams, field)


def test_every_reason_is_there_before_it_was_ever_counted() -> None:
    """Prometheus sees no increase in a series that appears with its first value."""
    registry = RunMetrics().registry

    for reason in Departure:
        assert registry.get_sample_value("gradwire_leaves_total", {"reason": reason}) == 0
    for code in RefusalCode:
        assert registry.get_sample_value("gradwire_refusals_total", {"reason": code}) == 0
