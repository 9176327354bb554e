"""What the documents of the JSON API have: the OpenAPI document is made from these types."""

import math
from collections.abc import Mapping
from typing import Any, TypedDict

Numbers = dict[str, float | None]


class Line(TypedDict):
    """A run, in short."""

    name: str
    mode: str
    parameters: int
    workers: int
    updates: int
    finished: bool
    stopping: str | None
    ended_unix_time: float | None


class RunLines(TypedDict):
    """Runs in progress, and the last ones that are over, the newest first."""

    runs: list[Line]
    over: list[Line]


class Summary(RunLines):
    """What concerns no single run, and a line for each run."""

    version: str
    pid: int
    unix_time: float
    uptime_seconds: float
    connections: int
    draining: bool
    figures: Numbers


class Logged(TypedDict):
    """What a worker has logged last."""

    step: int | None
    figures: Numbers
    scalars: Numbers


class Worker(Logged):
    """A worker, as the roster shows it."""

    rank: int
    name: str
    key_name: str | None
    address: str
    state: str
    heard_seconds: float | None
    rtt_seconds: float | None
    sent_bytes: int
    queued_bytes: int
    lacks_updates: int
    awaited: bool
    held_by: int | None
    updates: int


class RunDocument(TypedDict):
    """A run, and its workers; of one that is over, as they were last."""

    name: str
    unix_time: float
    ended_unix_time: float | None
    mode: str
    parameters: int
    finished: bool
    stopping: str | None
    items_paused: bool
    round: dict[str, Any] | None
    works: list[dict[str, Any]]
    checkpoint: dict[str, Any] | None
    observers: int
    seconds: float | None
    scalars: int
    scalars_dropped: int
    histograms: int
    histograms_dropped: int
    events: int
    figures: Numbers
    series: list[str]
    workers: list[Worker]


class Event(TypedDict):
    """One thing that has happened."""

    number: int
    unix_time: float
    seconds: float | None
    kind: str
    rank: int | None
    text: str


class Events(TypedDict):
    """What has happened; `last` is the number of the newest entry of the master."""

    last: int
    events: list[Event]


class CurveDocument(TypedDict):
    """A curve in columns; without a rank it is the mean of all workers."""

    name: str
    rank: int | None
    steps: int
    step: list[int]
    seconds: list[float | None]
    mean: list[float | None]
    low: list[float | None]
    high: list[float | None]


class Curves(TypedDict):
    """Some curves."""

    curves: list[CurveDocument]


class Layer(TypedDict):
    """A tensor, and the series with how large its updates are, beside its parameters."""

    name: str
    ratio: str


class Histogram(TypedDict):
    """How values of a tensor are distributed: the bins divide the range from lowest to highest."""

    layer: str
    quantity: str
    elements: int
    nan: int
    infinite: int
    lowest: float
    highest: float
    mean: float
    deviation: float
    bins: list[int]


class Histograms(TypedDict):
    """The newest histograms of a run, of one worker; the rank is null where there are none."""

    rank: int | None
    step: int
    layers: list[Layer]
    histograms: list[Histogram]


def finite(numbers: Mapping[str, float]) -> Numbers:
    """Return numbers as JSON has them: what is not finite is null."""
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}
