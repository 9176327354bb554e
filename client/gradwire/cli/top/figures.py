"""`Picture`: what documents of a master say, with nothing in it that a terminal must not be sent.

A document may lack anything, and have anything in its place: it comes from another machine, and
perhaps from another version.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gradwire.cli.top.documents import Document, Documents, as_document, as_documents, is_name
from gradwire.cli.top.text import number, plain

UPDATES_SERIES: Final = "master/updates_per_second"

LOSS: Final = re.compile(r"(?i)(?:.*[^a-z])?loss(?:[^a-z].*)?")
"""Names of series that are a loss: ``loss``, ``train/loss``, ``loss_epoch``."""

TROUBLED: Final = ("silent", "quarantined")
"""States of workers that people have to see first."""

AT_WORK: Final = ("live", "founding", "syncing", "waiting")
"""States of workers that are there and have not finished."""


def loss_name(names: Iterable[Any]) -> str | None:
    """Return which of some series is the loss: the one with the shortest name; None without one."""
    found = (n for n in names if is_name(n) and len(n) <= 300 and LOSS.fullmatch(n))
    return min(found, key=lambda name: (len(name), name), default=None)


@dataclass(frozen=True, slots=True)
class Worker:
    """A row of the roster."""

    run: str
    rank: int
    name: str
    host: str
    state: str
    step: float | None
    steps_per_second: float | None
    staleness: float | None
    bytes_per_second: float | None
    density: float | None
    rtt_seconds: float | None
    loss: float | None
    transport: str
    version: str
    relay: str

    @classmethod
    def of(cls, run: str, document: Document) -> "Worker":
        """Read a worker's document."""
        figures, scalars = (as_document(document.get(name)) for name in ("figures", "scalars"))
        own = plain(document.get("name"))
        key_name = plain(document.get("key_name"))
        rank, relay = number(document.get("rank")), number(document.get("relay"))
        loss = loss_name(scalars)
        return cls(
            run=run,
            rank=-1 if rank is None else int(rank),
            name=key_name or own,
            host=_host(own.removeprefix(f"{key_name} at "), plain(document.get("address"))),
            state=plain(document.get("state")),
            step=number(document.get("step")),
            steps_per_second=number(figures.get("steps_per_second")),
            staleness=number(figures.get("staleness_updates")),
            bytes_per_second=number(figures.get("encoded_bytes_per_second")),
            density=number(figures.get("density_ratio")),
            rtt_seconds=number(document.get("rtt_seconds")),
            loss=None if loss is None else number(scalars.get(loss)),
            transport=plain(document.get("transport")),
            version=plain(document.get("version")),
            relay="" if relay is None else f"{relay:.0f}",
        )

    @property
    def troubled(self) -> bool:
        """Whether people have to see it first."""
        return self.state in TROUBLED


def _host(own_name: str, address: str) -> str:
    """Return the host in ``host/pid``, as a session calls itself; else the one in an address."""
    host, separator, _ = own_name.rpartition("/")
    if separator:
        return host
    return address.rpartition(":")[0].strip("[]") or address


@dataclass(frozen=True, slots=True)
class Event:
    """Something that has happened in a run."""

    run: str
    at: float
    """Unix time by the clock of the master."""
    kind: str
    text: str

    @classmethod
    def of(cls, run: str, document: Document) -> "Event":
        """Read an event's document."""
        at = number(document.get("unix_time"))
        text = plain(document.get("text"))
        return cls(run, 0.0 if at is None else at, plain(document.get("kind")), text)


@dataclass(frozen=True, slots=True)
class Work:
    """Items that a run divides among its workers."""

    name: str
    total: float
    done: float

    @classmethod
    def of(cls, document: Document) -> "Work":
        """Read the document of a work."""
        counts = [
            number(document.get(name)) or 0.0 for name in ("done", "finished", "held", "left")
        ]
        return cls(plain(document.get("name")), sum(counts), counts[0] + counts[1])


@dataclass(frozen=True, slots=True)
class Run:
    """A run; the overview has its line, and its document the rest."""

    name: str
    """As it is shown."""
    key: str
    """As the master has it."""
    mode: str
    parameters: float | None
    finished: bool
    stopping: str
    workers_count: float | None
    updates: float | None
    """Accepted so far."""
    updates_per_second: float | None
    is_read: bool = False
    """Whether there is more of it than the line in the overview."""
    workers: tuple[Worker, ...] = ()
    """Those that people have to see come first, then by rank."""
    works: tuple[Work, ...] = ()
    events: tuple[Event, ...] = ()
    loss_curve: tuple[float | None, ...] = ()
    rate_curve: tuple[float | None, ...] = ()

    @classmethod
    def of(cls, key: str, line: Document, documents: Documents) -> "Run":
        """Read what there is of a run."""
        document = documents.runs.get(key, {})
        said = {**line, **document}
        name = plain(key)
        workers = [Worker.of(name, each) for each in as_documents(document.get("workers"))]
        curves = as_documents(as_document(documents.series.get(key)).get("curves"))
        events = as_documents(as_document(documents.events.get(key)).get("events"))
        figures = as_document(document.get("figures"))
        return cls(
            name=name,
            key=key,
            mode=plain(said.get("mode")),
            parameters=number(said.get("parameters")),
            finished=said.get("finished") is True,
            stopping=plain(said.get("stopping")),
            workers_count=float(len(workers)) if document else number(line.get("workers")),
            updates=number(line.get("updates")),
            updates_per_second=number(figures.get("updates_per_second")),
            is_read=key in documents.runs,
            workers=tuple(sorted(workers, key=lambda each: (not each.troubled, each.rank))),
            works=tuple(Work.of(each) for each in as_documents(document.get("works"))),
            events=tuple(Event.of(name, each) for each in events),
            loss_curve=_means(curves, is_loss=True),
            rate_curve=_means(curves, is_loss=False),
        )

    @property
    def loss(self) -> float | None:
        """The mean of the losses that workers have logged last; None where none was logged."""
        losses = [each.loss for each in self.workers if each.loss is not None]
        return sum(loss / len(losses) for loss in losses) if losses else None

    @property
    def steps(self) -> tuple[float, float] | None:
        """The steps of the workers that are the least and the most advanced, if any is known."""
        steps = [each.step for each in self.workers if each.step is not None]
        return (min(steps), max(steps)) if steps else None

    @property
    def steps_per_second(self) -> float | None:
        """Of all workers that are at work together."""
        rates = [
            each.steps_per_second
            for each in self.workers
            if each.steps_per_second is not None and each.state in AT_WORK
        ]
        return number(sum(rates)) if rates else None

    @property
    def state(self) -> str:
        """What there is to say of the run as a whole."""
        if self.finished:
            return "finished"
        return f"stopping: {self.stopping}" if self.stopping else "in progress"


def _means(curves: Iterable[Document], *, is_loss: bool) -> tuple[float | None, ...]:
    for curve in curves:
        of_loss = curve.get("name") != UPDATES_SERIES
        values = curve.get("mean")
        if curve.get("rank") is None and of_loss is is_loss and isinstance(values, list):
            return tuple(map(number, values))
    return ()


@dataclass(frozen=True, slots=True)
class Picture:
    """A master at one moment."""

    version: str = ""
    role: str = ""
    """Of two masters, which one this is."""
    draining: bool = False
    relays: int = 0
    unix_time: float | None = None
    uptime_seconds: float | None = None
    figures: Mapping[str, float | None] = field(default_factory=dict)
    runs: tuple[Run, ...] = ()

    @classmethod
    def of(cls, documents: Documents) -> "Picture":
        """Read documents."""
        overview = documents.overview
        lines = {
            line["name"]: line
            for line in as_documents(overview.get("runs"))
            if is_name(line.get("name"))
        }
        # A run may have begun or ended between two answers.
        keys = [*lines, *(key for key in documents.runs if key not in lines)]
        figures = as_document(overview.get("figures"))
        return cls(
            version=plain(overview.get("version")),
            role=plain(as_document(overview.get("master")).get("role")),
            draining=overview.get("draining") is True,
            relays=len(as_documents(overview.get("relays"))),
            unix_time=number(overview.get("unix_time")),
            uptime_seconds=number(overview.get("uptime_seconds")),
            figures={name: number(value) for name, value in figures.items()},
            runs=tuple(Run.of(key, lines.get(key, {}), documents) for key in keys),
        )

    def run(self, key: str | None) -> Run | None:
        """Return a run by its name; None if it is not there."""
        return next((run for run in self.runs if run.key == key), None)

    def figure(self, name: str) -> float | None:
        """Return a figure of the daemon."""
        return self.figures.get(name)
