"""`timeline_of`: what driver and workers did over time, as HTML with SVG that stretches.

Drawings are `WIDTH` units wide, whatever the page's width. Text is HTML beside them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, isfinite
from typing import Final

from gradwire.spark.statistics.records import (
    Account,
    ItemRecord,
    Phase,
    WorkerRecord,
    mean_loss,
    seconds_by_phase,
)
from gradwire.spark.statistics.text import show_duration, show_loss

WORKERS_MAX: Final = 200
"""Workers on the page: the first ones."""

BARS_MAX: Final = 2_000
"""Bars in the time line, each with up to 7 elements and 500 bytes."""

BARS_OF_WORKER_MAX: Final = 300
"""Bars of one worker: a page is seldom wide enough for more."""

SEPARATED_MAX: Final = 60
"""Bars of a worker between which there are gaps; more of them would be gaps only."""

LABEL_SHARE_MIN: Final = 0.09
"""Share of the time line that a phase of the driver needs to have its name in it."""

WIDTH: Final = 10_000

HEIGHT: Final = 20
"""Of a row."""

WIDTH_MIN: Final = 15
"""Of what is short, so that it is still to be found."""

TICKS_MAX: Final = 6

STEPS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
"""Seconds between ticks."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Time, from the job's first event to its last one."""

    began: float
    seconds: float

    def place(self, time: float) -> int:
        """Return where a Unix time is in a drawing."""
        return min(WIDTH, max(0, round(WIDTH * (time - self.began) / self.seconds)))

    def ticks(self) -> list[tuple[int, str]]:
        """Return places of ticks, and what they say."""
        least = self.seconds / TICKS_MAX
        step = next((each for each in STEPS if each >= least), STEPS[-1] * ceil(least / STEPS[-1]))
        units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
        unit, length = next(each for each in units if step >= each[1])
        return [
            (self.place(self.began + second), f"{second / length:g} {unit}")
            for second in range(0, floor(self.seconds) + 1, step)
        ]


@dataclass(frozen=True, slots=True)
class Bar:
    """Consecutive items of one worker, drawn as one."""

    began: float
    seconds: dict[str, float]
    title: str


def axis_of(account: Account) -> Axis:
    """Return the time of the whole job."""
    spans = [(phase.began, phase.began + phase.seconds) for phase in account.phases]
    spans += [(item.began, item.ended) for item in account.items]
    spans += [(each.began, max(each.began, each.left or 0.0)) for each in account.workers]
    if not spans:
        return Axis(0.0, 1.0)
    began, ended = min(start for start, _ in spans), max(end for _, end in spans)
    return Axis(began, max(ended - began, 1e-3))


def timeline_of(account: Account, axis: Axis) -> str:
    """Return a row for the driver, one for each worker, and what their colours mean."""
    if not account.phases and not account.workers:
        return ""
    workers, items = account.workers[:WORKERS_MAX], account.items_by_attempt()
    most = min(BARS_OF_WORKER_MAX, BARS_MAX // max(1, len(workers)))
    rows, merged = [_driver_row(account.phases, axis)], 1
    for worker in workers:
        own = items[worker.attempt]
        together = max(1, ceil(len(own) / most))
        merged = max(merged, together)
        rows.append(_worker_row(worker, _bars_of(own, together), axis))
    what = f"up to {merged:,} successive items of a worker" if merged > 1 else "an item"
    note = f"Each bar is {what}; inside it, the phases of all its steps are put together."
    more = len(account.workers) - WORKERS_MAX
    left_out = f" {more:,} more workers are not shown." if more > 0 else ""
    return (
        "<h2>Time line</h2>"
        + note_of(f"{note} Each host has its own clock.{left_out}")
        + _key(seconds_by_phase(account.workers))
        + "\n".join(rows)
        + ticks_of(axis)
        + _said(account.phases)
    )


def title_of(items: Sequence[ItemRecord]) -> str:
    """Name items as a person counts epochs: from 1 on."""
    first, last = min(i.epoch for i in items) + 1, max(i.epoch for i in items) + 1
    if len(items) == 1:
        return f"Item {items[0].item} of epoch {first}"
    epochs = f"epoch {first}" if first == last else f"epochs {first} to {last}"
    return f"{len(items):,} items of {epochs}"


# Parts of the page.


def drawing_of(content: str, height: int, label: str) -> str:
    """Return a drawing that is stretched to the width of what it is in."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escaped(label)}">{content}</svg>'
    )


def ticks_of(axis: Axis) -> str:
    """Return the times below a drawing; one at its right edge would be cut."""
    ticks = "".join(
        f'<span style="left:{percent(place)}">{text}</span>'
        for place, text in axis.ticks()
        if place <= 0.97 * WIDTH
    )
    return f'<div class="row"><div></div><div class="axis">{ticks}</div></div>'


def note_of(text: str) -> str:
    """Return a paragraph of small weight."""
    return f'<p class="soft">{escaped(text)}</p>'


def escaped(text: str) -> str:
    """Escape what comes from elsewhere; XML has no control characters."""
    return escape("".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text))


def percent(place: int, whole: int = WIDTH) -> str:
    """Return a place in a drawing for text above it."""
    return f"{100 * place / whole:.2f}%"


# Rows.


def _driver_row(phases: Sequence[Phase], axis: Axis) -> str:
    drawn, labels = [], []
    for n, phase in enumerate(phases):
        start, end = axis.place(phase.began), axis.place(phase.began + phase.seconds)
        text = escaped(f"{phase.name} {show_duration(phase.seconds)}")
        rect = _rect(start, max(end, start + WIDTH_MIN), f"driver{n % 2}")
        drawn.append(f"<g><title>{text}</title>{rect}</g>")
        if end - start >= LABEL_SHARE_MIN * WIDTH:
            style = f"left:{percent(start)};width:{percent(end - start)}"
            labels.append(f'<span style="{style}">{text}</span>')
    return _row("driver", "", axis, "".join(drawn), "".join(labels))


def _worker_row(worker: WorkerRecord, bars: Sequence[Bar], axis: Axis) -> str:
    ends = [bar.began + sum(bar.seconds.values()) for bar in bars]
    end = max([worker.began, worker.joined or 0.0, worker.left or 0.0, *ends])
    title = f"{worker.name}: in Spark's task for {show_duration(end - worker.began)}"
    if worker.joined is not None:
        title += f", joined after {show_duration(max(0.0, worker.joined - worker.began))}"
    start = axis.place(worker.began)
    width = max(axis.place(end) - start, WIDTH_MIN)
    task = f'<rect x="{start}" y="7" width="{width}" height="6" class="idle"/>'
    drawn = [f"<g><title>{escaped(title)}</title>{task}</g>", *(_drawn(bar, axis) for bar in bars)]
    if len(bars) <= SEPARATED_MAX:
        places = [axis.place(bar.began) for bar in bars[1:]]
        drawn.append(f'<path class="gap" d="{"".join(f"M{x} 0v{HEIGHT}" for x in places)}"/>')
    rank = "" if worker.rank is None else f"rank {worker.rank}"
    return _row(worker.short_name, rank, axis, "".join(drawn))


def _row(name: str, detail: str, axis: Axis, drawn: str, labels: str = "") -> str:
    grid = "".join(f"M{place} 0v{HEIGHT}" for place, _ in axis.ticks())
    drawing = drawing_of(f'<path class="grid" d="{grid}"/>{drawn}', HEIGHT, f"Time line of {name}")
    return (
        f'<div class="row"><div class="name">{escaped(name)} <small>{detail}</small></div>'
        f'<div class="track">{drawing}{labels}</div></div>'
    )


def _bars_of(items: Sequence[ItemRecord], together: int) -> list[Bar]:
    """Return a bar for each so many items, which are those of one worker in the order of time."""
    parts = [items[start : start + together] for start in range(0, len(items), together)]
    return [_bar_of(part, seconds_by_phase(part)) for part in parts]


def _bar_of(items: Sequence[ItemRecord], seconds: dict[str, float]) -> Bar:
    rows, steps, loss = sum(i.rows for i in items), sum(i.steps for i in items), mean_loss(items)
    text = f"{title_of(items)}: {_counted(rows, 'row')}, {_counted(steps, 'step')}"
    if isfinite(loss):
        text += f", loss {show_loss(loss)}"
    parts = [f"{name} {show_duration(each)}" for name, each in seconds.items() if each >= 5e-5]
    return Bar(items[0].began, seconds, f"{text}\n{', '.join(parts)}")


def _drawn(bar: Bar, axis: Axis) -> str:
    """Return the phases side by side, each from the place where the last one ends."""
    at, start, rects = bar.began, axis.place(bar.began), []
    for name, seconds in bar.seconds.items():
        at += seconds
        end = axis.place(at)
        if end > start:
            rects.append(_rect(start, end, name))
        start = end
    return f"<g><title>{escaped(bar.title)}</title>{''.join(rects)}</g>" if rects else ""


def _rect(start: int, end: int, kind: str) -> str:
    return f'<rect x="{start}" width="{end - start}" height="{HEIGHT}" class="{kind}"/>'


# What is around them.


def _key(seconds: dict[str, float]) -> str:
    """Return the colours, with each phase's share of the time of all workers, and as one bar."""
    total = sum(seconds.values())
    entries = [
        f'<li><i class="{name}"></i>{name} '
        + (f"<b>{each / total:.1%}</b> <small>{show_duration(each)}</small>" if total else "")
        + "</li>"
        for name, each in seconds.items()
    ]
    entries.append('<li><i class="idle"></i>between items</li>')
    key = f'<ul class="key">{"".join(entries)}</ul>'
    if not total:
        return key
    bar = Bar(0.0, seconds, "Time of all workers for their items")
    drawn = drawing_of(_drawn(bar, Axis(0.0, total)), HEIGHT, "Time of all workers, by phase")
    return f'<div class="all">{drawn}</div>{key}'


def _said(phases: Sequence[Phase]) -> str:
    """Return the driver's phases in words, the short ones too."""
    texts = [f"{name} {show_duration(seconds)}" for name, _, seconds in phases]
    return note_of(f"Driver: {', '.join(texts)}.") if texts else ""


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
