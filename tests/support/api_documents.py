"""Documents as the JSON API of a master has them, for what shows them."""

from collections.abc import Sequence
from typing import Any

from gradwire.cli.top.documents import Documents

Document = dict[str, Any]

HOSTILE = "\x1b[2J\x1b]0;owned\x07<script>[red]\u202eevil\r\n\u0301\u0301\u0301\u0301" + "x" * 1_000
"""A name that clears screens, sets titles, is HTML and markup, turns directions, and is long."""


def worker(rank: int, state: str = "live", **more: Any) -> Document:
    return {
        "rank": rank,
        "name": f"gpu{rank} at host{rank % 4}/{1000 + rank}",
        "key_name": f"gpu{rank}",
        "address": f"10.0.2.{rank % 250}:5000",
        "transport": "udp",
        "version": "1.2.3",
        "state": state,
        "relay": None,
        "heard_seconds": 0.1,
        "rtt_seconds": 0.0021,
        "queued_bytes": 0,
        "updates": 100 + rank,
        "step": 100 + rank,
        "figures": {
            "steps_per_second": 12.5,
            "encoded_bytes_per_second": 51_234.0,
            "staleness_updates": 1.25,
            "density_ratio": 0.0031,
        },
        "scalars": {"loss": 2.0 + rank, "accuracy": 0.5},
        **more,
    }


def a_run(name: str, workers: Sequence[Document], **more: Any) -> Document:
    return {
        "unix_time": 1_000_000.0,
        "name": name,
        "finished": False,
        "parameters": 168_320,
        "mode": "sharing",
        "round": None,
        "damaged_blocks": [],
        "observers": [],
        "stopping": None,
        "items_paused": False,
        "works": [],
        "checkpoint": None,
        "seconds": 10.0,
        "scalars": 1,
        "events": 2,
        "figures": {"updates_per_second": 48.5, "workers": float(len(workers))},
        "series": ["loss", "master/updates_per_second"],
        "workers": list(workers),
        **more,
    }


def overview(runs: Sequence[Document]) -> Document:
    of_line = ("name", "mode", "parameters", "finished", "stopping")
    return {
        "version": "1.2.3",
        "pid": 1,
        "unix_time": 1_000_000.0,
        "uptime_seconds": 3_723.0,
        "connections": 4,
        "draining": False,
        "denied": [],
        "master": {"role": None},
        "relays": [],
        "figures": {
            "processor_ratio": 0.42,
            "memory_bytes": 2.3e8,
            "received_bytes_per_second": 1.2e6,
            "sent_bytes_per_second": 3.4e6,
        },
        "runs": [
            {
                **{name: run[name] for name in of_line},
                "workers": len(run["workers"]),
                "updates": 1_000,
            }
            for run in runs
        ],
    }


def events(*texts: str) -> Document:
    return {
        "last": len(texts),
        "events": [
            {
                "number": number,
                "unix_time": 1_000_000.0 - 60 + number,
                "seconds": 1.0,
                "kind": "joined",
                "rank": 0,
                "text": text,
            }
            for number, text in enumerate(texts, start=1)
        ],
    }


def curve(name: str, means: Sequence[float | None]) -> Document:
    steps = list(range(len(means)))
    return {
        "name": name, "rank": None, "steps": 1, "step": steps, "seconds": steps,
        "mean": list(means), "low": list(means), "high": list(means),
    }  # fmt: skip


def documents(*runs: Document, texts: Sequence[str] = ()) -> Documents:
    """Return all documents of a master with some runs."""
    names = [run["name"] for run in runs]
    curves = [
        curve("loss", [3.0, 2.5, None, 1.0]),
        curve("master/updates_per_second", [1.0, 48.5]),
    ]
    return Documents(
        overview(runs),
        {run["name"]: run for run in runs},
        {name: events(*texts) for name in names},
        {name: {"curves": curves} for name in names},
    )
