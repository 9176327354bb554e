"""What a real master, a relay before it and a worker show to Prometheus."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from urllib.request import urlopen

import numpy as np
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import gradwire
from gradwire.metrics import SessionCollector
from support.local_master import MasterProcess
from support.waiting import wait_until

STEPS = 3


@dataclass
class Exposition:
    """The names of all series, with the labels of each."""

    labels: dict[str, frozenset[str]]
    counters: frozenset[str]
    """Those that only grow: of counters, histograms and summaries."""

    def add(self, text: str) -> None:
        """Add what a page of metrics shows."""
        for family in text_string_to_metric_families(text):
            grows = family.type in ("counter", "histogram", "summary")
            for sample in family.samples:
                known = self.labels.get(sample.name, frozenset())
                self.labels[sample.name] = known | sample.labels.keys()
                if grows and not sample.name.endswith("_created"):
                    self.counters |= {sample.name}


def page(http: str) -> str:
    """Return the metrics that a daemon shows at an address."""
    with urlopen(f"http://{http}/metrics", timeout=10) as response:
        return str(response.read().decode())


@contextmanager
def training_worker(
    master: str,
) -> Iterator[tuple[gradwire.Session, Callable[[], None]]]:
    """Take part in a run, with some steps and items; yield the session, and what makes a step."""
    parameters = np.zeros(4096, np.float32)

    change = cycle((1.0, -1.0))

    def step() -> None:
        parameters[:] += next(change)
        session.step()

    with gradwire.join(
        parameters, master=master, workers=1, staleness_bound="off", quiet=True
    ) as session:
        for _ in zip(range(STEPS), session.items("rows", 100), strict=False):
            step()
        yield session, step
        session.leave()


def exposition() -> Exposition:
    """Return what a master with a worker, its relay, and that worker show."""
    found = Exposition({}, frozenset())
    with (
        MasterProcess("--topology", "tree") as master,
        MasterProcess(relay_of=master.address) as relay,
        training_worker(master.address) as (session, _),
    ):
        http = str(master.announcement["http"])
        wait_until(lambda: "gradwire_rtt_seconds{" in page(http), "a round trip to the worker")
        registry = CollectorRegistry()
        registry.register(SessionCollector(session))
        for text in (
            page(http),
            page(str(relay.announcement["http"])),
            generate_latest(registry).decode(),
        ):
            found.add(text)
    return found
