"""`text_of`: what a training was like as text."""

from collections.abc import Sequence
from math import isfinite
from typing import Final

from gradwire.cli.quantities import show_bytes, show_count, show_seconds
from gradwire.spark.statistics.records import PHASES, Account, WorkerRecord

LINES_MAX: Final = 10
"""Epochs and workers that the text names."""

Table = list[list[str]]
"""A header and lines, of which one may be short."""


def text_of(account: Account) -> str:
    """Return the main figures, one line each for epochs and workers, and some 30 lines at most."""
    parts = ["\n".join(_headlines(account))]
    if account.items or account.scores:
        parts.append(_aligned(_epoch_table(account)))
    if account.workers:
        parts.append(_aligned(_worker_table(account.workers)))
    return "\n\n".join(parts)


def _epoch_table(account: Account) -> Table:
    """Return losses and scores by epoch: the first one and the last ones, which matter most."""
    losses, scores = account.losses, account.scores
    lines = [
        [
            f"{place + 1} (best)" if place + 1 == account.best_epoch else f"{place + 1}",
            _show_loss(losses[place]) if place < len(losses) else "",
            _show_loss(scores[place]) if place < len(scores) else "",
        ]
        for place in range(max(len(losses), len(scores)))
    ]
    if len(lines) > LINES_MAX:
        lines = [lines[0], ["..."], *lines[2 - LINES_MAX :]]
    return [["epoch", "loss", "held out"], *lines]


def _worker_table(workers: Sequence[WorkerRecord]) -> Table:
    """Return what each worker did, the first ones if there are many."""
    header = ["worker", "rank", "items", "rows", "rows/s", *PHASES, "staleness"]
    lines = [
        [
            worker.short_name,
            "" if worker.rank is None else str(worker.rank),
            f"{worker.items:,}",
            f"{worker.rows:,}",
            show_count(worker.rows / worker.seconds) if worker.seconds > 0 else "",
            *(_share(seconds, worker.seconds) for seconds in worker.by_phase.values()),
            f"{worker.staleness:.2f}",
        ]
        for worker in workers[:LINES_MAX]
    ]
    if len(workers) > LINES_MAX:
        lines.append([f"... {len(workers) - LINES_MAX:,} more"])
    return [header, *lines]


def _remarks_on(account: Account) -> list[str]:
    """Return how many items are done, as the master says it, and why training ended early."""
    remarks, ledger = [], account.ledger
    if ledger:
        done, total = ledger["done"] + ledger["finished"], ledger["items"] * ledger["epochs"]
        text = f"{done:,} of {total:,} items done"
        returned = ledger.get("returned", 0)
        again = f"; given back or lost, then granted again: {returned:,}" if returned else ""
        remarks.append(text + again)
    if lost := account.unreported:
        remarks.append(
            f"{lost:,} of them by workers that were lost: their rows, losses and times are in no "
            "figure here"
        )
    if account.stopped is not None:
        remarks.append(f"stopped early: {account.stopped}")
    return remarks


def _show_loss(loss: float) -> str:
    """Return ``0.0512``, and nothing for a loss that nobody knows."""
    return f"{loss:.4g}" if isfinite(loss) else ("" if loss != loss else "infinite")


def _show_duration(seconds: float) -> str:
    """Return ``3.2 s``, and ``0 s`` for nothing."""
    return show_seconds(seconds) if seconds >= 1e-6 else "0 s"


def _headlines(account: Account) -> list[str]:
    workers = sum(record.items > 0 for record in account.workers)
    return [
        f"{account.rows:,} rows in {_show_duration(account.seconds)}: "
        f"{show_count(account.rows_per_second)} rows/s by {workers:,} workers",
        f"{show_bytes(account.bytes_sent)} sent, {show_bytes(account.bytes_received)} received, "
        f"mean staleness {account.staleness:.2f}",
        *_remarks_on(account),
    ]


def _share(seconds: float, whole: float) -> str:
    return f"{seconds / whole:.0%}" if whole > 0 else ""


def _aligned(table: Table) -> str:
    """Align the first column left, and all others right; columns without values are left out."""
    filled = [line + [""] * (len(table[0]) - len(line)) for line in table]
    used = [place for place, _ in enumerate(table[0]) if any(line[place] for line in filled[1:])]
    widths = {place: max(len(line[place]) for line in filled) for place in used}
    texts = []
    for line in filled:
        cells = [line[p].ljust(widths[p]) if not p else line[p].rjust(widths[p]) for p in used]
        texts.append("  ".join(cells).rstrip())
    return "\n".join(texts)
