"""`page_of`: what a training was like as one HTML page of tables.

It has no scripts and asks for nothing from the network. The same account gives the same page.
"""

from datetime import UTC, datetime
from html import escape
from math import isfinite
from typing import Final

from gradwire.cli.quantities import show_bytes, show_count
from gradwire.spark.statistics.records import Account
from gradwire.spark.statistics.text import (
    Table,
    epoch_table,
    remarks_on,
    show_duration,
    show_loss,
    worker_table,
)

EPOCHS_MAX: Final = 100
WORKERS_MAX: Final = 200
"""Lines of the tables."""

STYLE: Final = """
:root{color-scheme:light dark}body{margin:2rem auto;padding:0 1rem;max-width:80rem;
font:15px/1.45 system-ui,sans-serif}table{border-collapse:collapse;white-space:nowrap;
font-variant-numeric:tabular-nums}th,td{text-align:right;padding:.3rem .7rem}
th:first-child,td:first-child{text-align:left;padding-left:0}
"""


def page_of(account: Account) -> str:
    """Return the page, a document of at most some 100 KB."""
    remarks = [f"{text[0].upper()}{text[1:]}." for text in remarks_on(account)]
    began = [phase.began for phase in account.phases] + [each.began for each in account.workers]
    if began:
        remarks.insert(0, f"Began {datetime.fromtimestamp(min(began), UTC):%Y-%m-%d %H:%M:%S} UTC.")
    parts = [f"<h1>Training on Spark</h1><p>{_escaped(' '.join(remarks))}</p>"]
    parts.append(_table([["figure", "value"], *_figures(account)]))
    if account.phases:
        phases = [[phase.name, show_duration(phase.seconds)] for phase in account.phases]
        parts.append("<h2>Driver</h2>" + _table([["phase", "time"], *phases]))
    if account.losses or account.scores:
        parts.append("<h2>Epochs</h2>" + _table(epoch_table(account, EPOCHS_MAX)))
    if account.workers:
        note = "<p>A worker is one attempt of a Spark task: host/task attempt.</p>"
        parts.append(f"<h2>Workers</h2>{note}" + _table(worker_table(account.workers, WORKERS_MAX)))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        f"<title>Training on Spark</title><style>{STYLE}</style></head><body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _figures(account: Account) -> list[list[str]]:
    """Return the main figures: what each is, and its value."""
    job = sum(phase.seconds for phase in account.phases)
    trained = sum(record.items > 0 for record in account.workers)
    figures = [
        ["rows trained on", f"{account.rows:,}"],
        ["rows per second", show_count(account.rows_per_second)],
        ["training time", show_duration(account.seconds)],
        ["whole job", show_duration(job)],
        ["workers that trained", f"{trained:,}"],
        ["items", f"{len(account.items):,}"],
    ]
    losses, scores, best = account.losses, account.scores, account.best_epoch
    if losses and isfinite(losses[-1]):
        figures.append(["loss, last epoch", show_loss(losses[-1])])
    if best is not None:
        figures.append([f"held out, best epoch ({best})", show_loss(scores[best - 1])])
    elif scores:
        figures.append(["held out, last epoch", show_loss(scores[-1])])
    return [
        *figures,
        ["sent by workers", show_bytes(account.bytes_sent)],
        ["received by workers", show_bytes(account.bytes_received)],
        ["mean staleness", f"{account.staleness:.2f}"],
    ]


def _table(table: Table) -> str:
    head = "".join(f"<th>{cell}</th>" for cell in table[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{_escaped(cell)}</td>" for cell in line) + "</tr>\n"
        for line in table[1:]
    )
    return f"<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"


def _escaped(text: str) -> str:
    """Escape what comes from elsewhere; XML has no control characters."""
    return escape("".join(c if c.isprintable() else "\ufffd" for c in text))
