"""`page_of`: what a training was like as one HTML page.

The page is also well-formed XML. It has no scripts and asks for nothing from the network. The same
account gives the same page.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from math import ceil, floor, isfinite, log10
from typing import Final

from gradwire.cli.estimate.quantities import show_bytes, show_count
from gradwire.spark.statistics.records import Account, ItemRecord, mean_loss
from gradwire.spark.statistics.text import (
    Table,
    epoch_table,
    remarks_on,
    show_duration,
    show_loss,
    worker_table,
)
from gradwire.spark.statistics.timeline import (
    WIDTH,
    WORKERS_MAX,
    Axis,
    axis_of,
    drawing_of,
    escaped,
    note_of,
    percent,
    ticks_of,
    timeline_of,
    title_of,
)

DOTS_MAX: Final = 600
"""Dots in the chart of the loss."""

MEANS_MAX: Final = 40
"""Points of the line through them."""

LINES_MAX: Final = 6
"""Lines across the chart."""

EPOCHS_MAX: Final = 100
"""Lines in the table of epochs."""

HEIGHT: Final = 1_000
"""Units from bottom to top of the chart."""

STYLE: Final = """
:root{color-scheme:light dark;--page:#fff;--text:#1d232b;--soft:#5c6672;--line:#dde1e6;
--tile:#f5f7f9;--idle:#dce1e7;--driver0:#4a5663;--driver1:#75818e;--data:#e09a26;--compute:#3a6fd8;
--encode:#8d5bc9;--apply:#20967c;--wait:#d34c5f;--other:#b3bac4}
@media(prefers-color-scheme:dark){:root{--page:#14181d;--text:#e4e8ed;--soft:#9aa5b1;--line:#2d343d;
--tile:#1c2229;--idle:#353d46;--driver0:#8f9caa;--driver1:#6a7683;--data:#e8ae55;--compute:#6c9bf2;
--encode:#b18aea;--apply:#4ac2a4;--wait:#f07f8f;--other:#566069}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1.5rem clamp(1rem,3vw,2.5rem) 3rem;max-width:100rem;
background:var(--page);color:var(--text);
font:15px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:1.45rem;margin:0}h2{font-size:1.1rem;margin:2.2rem 0 .6rem}
p{margin:.3rem 0}.soft,small{color:var(--soft)}small{font-size:.8rem}
.tiles{display:grid;grid-template-columns:repeat(6,1fr);gap:.6rem;margin:1.1rem 0}
.tile{background:var(--tile);border:1px solid var(--line);border-radius:.5rem;padding:.6rem .8rem}
.tile b{display:block;font-size:1.25rem;font-variant-numeric:tabular-nums;white-space:nowrap}
.tile span{color:var(--soft);font-size:.82rem}
.key{display:flex;flex-wrap:wrap;gap:.25rem 1.2rem;list-style:none;margin:.5rem 0 .9rem;padding:0}
.key i{display:inline-block;width:.75rem;height:.75rem;border-radius:2px;margin-right:.4rem}
.key b{font-variant-numeric:tabular-nums;font-weight:600}
svg{display:block;width:100%}
.row{display:grid;grid-template-columns:13rem minmax(0,1fr);gap:0 .9rem;align-items:center;
padding:2px 0}
.name{overflow:hidden;text-overflow:ellipsis;white-space:nowrap;font-size:.85rem}
.track{position:relative;height:20px}.track svg{height:20px}
.track span{position:absolute;top:0;height:20px;line-height:20px;padding-left:.4rem;overflow:hidden;
color:var(--page);font-size:.75rem;pointer-events:none;white-space:nowrap}
.all svg{height:12px;border-radius:3px}
.axis{position:relative;height:1.3rem;font-size:.75rem;color:var(--soft)}
.axis span{position:absolute;padding-left:.2rem;border-left:1px solid var(--line);
white-space:nowrap}
.chart{position:relative;height:220px;border-bottom:1px solid var(--line)}.chart svg{height:220px;
overflow:visible}
.chart span{position:absolute;left:0;font-size:.75rem;color:var(--soft);transform:translateY(-100%)}
.grid{stroke:var(--line);fill:none}.gap{stroke:var(--page);fill:none}
path{vector-effect:non-scaling-stroke}
.dot{stroke:var(--compute);stroke-width:6;stroke-linecap:round;stroke-opacity:.5}
.dot:hover{stroke-opacity:1}
.mean{stroke:var(--compute);stroke-width:2;fill:none;stroke-linejoin:round}
g:hover>rect{opacity:.75}
.data{fill:var(--data)}.compute{fill:var(--compute)}.encode{fill:var(--encode)}
.apply{fill:var(--apply)}.wait{fill:var(--wait)}.other{fill:var(--other)}.idle{fill:var(--idle)}
.driver0{fill:var(--driver0)}.driver1{fill:var(--driver1)}
i.data{background:var(--data)}i.compute{background:var(--compute)}i.encode{background:var(--encode)}
i.apply{background:var(--apply)}i.wait{background:var(--wait)}i.other{background:var(--other)}
i.idle{background:var(--idle)}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem;white-space:nowrap;
font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:.3rem .7rem;border-bottom:1px solid var(--line)}
th{color:var(--soft);font-weight:500}th:first-child,td:first-child{text-align:left;padding-left:0}
@media(max-width:62rem){.tiles{grid-template-columns:repeat(auto-fit,minmax(8.4rem,1fr))}}
@media(max-width:40rem){.row{grid-template-columns:minmax(0,1fr)}.name{font-size:.8rem}
.row>div:empty{display:none}}
"""


def page_of(account: Account) -> str:
    """Return the page, a document of at most some 2 MB."""
    parts = [_head(account), timeline_of(account, axis_of(account)), _chart(account)]
    if account.losses or account.scores:
        parts.append("<h2>Epochs</h2>" + _table(epoch_table(account, EPOCHS_MAX)))
    if account.workers:
        note = note_of("A worker is one attempt of a Spark task: host/task attempt.")
        table = _table(worker_table(account.workers, WORKERS_MAX))
        parts.append(f"<h2>Workers</h2>{note}{table}")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\"/>"
        f"<title>Training on Spark</title><style>{STYLE}</style></head><body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _head(account: Account) -> str:
    remarks = [f"{text[0].upper()}{text[1:]}." for text in remarks_on(account)]
    began = [phase.began for phase in account.phases] + [each.began for each in account.workers]
    if began:
        remarks.insert(0, f"Began {datetime.fromtimestamp(min(began), UTC):%Y-%m-%d %H:%M:%S} UTC.")
    tiles = (
        f'<div class="tile"><b>{escaped(value)}</b><span>{name}</span></div>'
        for name, value in _figures(account)
    )
    return (
        f"<h1>Training on Spark</h1>{note_of(' '.join(remarks))}"
        f'<div class="tiles">{"".join(tiles)}</div>'
    )


def _figures(account: Account) -> list[tuple[str, str]]:
    """Return the main figures: what each is, and its value."""
    job = sum(phase.seconds for phase in account.phases)
    trained = sum(record.items > 0 for record in account.workers)
    figures = [
        ("rows trained on", f"{account.rows:,}"),
        ("rows per second", show_count(account.rows_per_second)),
        ("training time", show_duration(account.seconds)),
        ("whole job", show_duration(job)),
        ("workers that trained", f"{trained:,}"),
        ("items", f"{len(account.items):,}"),
    ]
    losses, scores, best = account.losses, account.scores, account.best_epoch
    if losses and isfinite(losses[-1]):
        figures.append(("loss, last epoch", show_loss(losses[-1])))
    if best is not None:
        figures.append((f"held out, best epoch ({best})", show_loss(scores[best - 1])))
    elif scores:
        figures.append(("held out, last epoch", show_loss(scores[-1])))
    return [
        *figures,
        ("sent by workers", show_bytes(account.bytes_sent)),
        ("received by workers", show_bytes(account.bytes_received)),
        ("mean staleness", f"{account.staleness:.2f}"),
    ]


def _table(table: Table) -> str:
    head = "".join(f"<th>{cell}</th>" for cell in table[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{escaped(cell)}</td>" for cell in line) + "</tr>\n"
        for line in table[1:]
    )
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>"
    )


# The loss.


def _chart(account: Account) -> str:
    """Return the losses of items as dots, and a line through their means."""
    known = sorted(
        (record for record in account.items if record.rows and isfinite(record.loss)),
        key=lambda record: (record.ended, record.epoch, record.item),
    )
    if not known:
        return ""
    axis = Axis(account.items[0].began, max(account.seconds, 1e-3))
    dots, means = _parts(known, DOTS_MAX), _parts(known, MEANS_MAX)
    losses = [mean_loss(part) for part in dots]
    margin = 0.05 * (max(losses) - min(losses)) or 0.05 * abs(losses[0]) or 1.0
    low, high = min(losses) - margin, max(losses) + margin

    def place(loss: float) -> int:
        return round(HEIGHT * (high - loss) / (high - low))

    drawn, labels = [], []
    for tick in _ticks(low, high):
        drawn.append(f'<path class="grid" d="M0 {place(tick)}h{WIDTH}"/>')
        labels.append(f'<span style="top:{percent(place(tick), HEIGHT)}">{tick:g}</span>')
    for part, loss in zip(dots, losses, strict=True):
        drawn.append(
            f'<path class="dot" d="M{axis.place(part[-1].ended)} {place(loss)}h0">'
            f"<title>{title_of(part)}: loss {show_loss(loss)}</title></path>"
        )
    points = [
        f"{axis.place(part[len(part) // 2].ended)} {place(mean_loss(part))}" for part in means
    ]
    drawn.append(f'<path class="mean" d="M{"L".join(points)}"/>')
    dot, mean = len(dots[0]), len(means[0])
    note = f"Each dot is {'an item' if dot == 1 else f'up to {dot:,} items'}; the line is the mean"
    note += f" over {mean:,} items." if mean > 1 else " of each item."
    note += " Time begins with the first item."
    return (
        f"<h2>Loss</h2>{note_of(note)}"
        '<div class="row"><div></div><div class="chart">'
        f"{drawing_of(''.join(drawn), HEIGHT, 'Loss over time')}{''.join(labels)}</div></div>"
        + ticks_of(axis)
    )


def _parts(items: Sequence[ItemRecord], most: int) -> list[Sequence[ItemRecord]]:
    """Divide items into at most so many parts of one size."""
    size = ceil(len(items) / most)
    return [items[start : start + size] for start in range(0, len(items), size)]


def _ticks(low: float, high: float) -> list[float]:
    """Return round losses between two: multiples of 1, 2 or 5 times a power of ten."""
    least = (high - low) / LINES_MAX
    power = 10.0 ** floor(log10(least))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)
    return [n * step for n in range(ceil(low / step), floor(high / step) + 1)]
