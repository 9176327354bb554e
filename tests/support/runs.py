"""The runs of a daemon, as tests begin and read them."""

from collections.abc import Callable, Mapping
from itertools import chain

from gradwire_server.checkpoints.writer import CheckpointWriter
from gradwire_server.runs.background import Background
from gradwire_server.runs.collector import RUN_LABEL, RunsCollector
from gradwire_server.runs.runs import Runs
from gradwire_server.updates.decoding import Decoder


class GivenBackground(Background):
    """A decoder and a writer that are there before their master."""

    def __init__(
        self, decoder: Decoder | None = None, writer: CheckpointWriter | None = None
    ) -> None:
        self._decoder = decoder
        self._writer = writer

    def decoder(self, on_ready: Callable[[float], None]) -> Decoder | None:
        """Return the decoder; a test calls for its outcome itself."""
        return self._decoder

    def writer(self, on_ready: Callable[[float], None]) -> CheckpointWriter | None:
        """Return the writer; a test calls for its outcome itself."""
        return self._writer


def value_of(runs: Runs, name: str, labels: Mapping[str, str] | None = None) -> float | None:
    """Return a metric, added up over the runs if it is one of runs; None if there is none."""
    values = [
        sample.value
        for family in chain(runs.metrics.registry.collect(), RunsCollector(runs).collect())
        for sample in family.samples
        if sample.name == name
        and {key: v for key, v in sample.labels.items() if key != RUN_LABEL} == dict(labels or {})
    ]
    return sum(values) if values else None
