"""Documents of a master's JSON API, as `gradwire top` reads them."""

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote, urlsplit

from support.http_stub import Answer


def worker(rank: int, **more: Any) -> dict[str, Any]:
    return {
        "rank": rank,
        "name": f"gpu{rank} at host{rank}/{rank}",
        "address": f"10.0.2.{rank}:4{rank:04}",
        "lacks_updates": 77_000 + rank,
        "state": "live",
        "rtt_seconds": 0.0123,
        "step": 1_000 + rank,
        "figures": {
            "steps_per_second": 12.5,
            "staleness_updates": 3.0,
            "encoded_bytes_per_second": 166_000,
        },
        "scalars": {"loss": 2.0 + rank, "accuracy": 0.5},
        **more,
    }


def documents(*runs: str, workers: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    workers = [worker(0), worker(1)] if workers is None else workers
    return {
        "overview": {
            "version": "0.1.0",
            "unix_time": 1_000.0,
            "uptime_seconds": 3_723.0,
            "figures": {
                "processor_ratio": 0.34,
                "memory_bytes": 3e8,
                "received_bytes_per_second": 1.5e6,
                "sent_bytes_per_second": 2.5e6,
            },
            "runs": [{"name": name} for name in runs],
            "over": [],
        },
        "over": [],
        "runs": {
            name: {
                "run": {
                    "name": name,
                    "mode": "sharing",
                    "finished": False,
                    "stopping": None,
                    "series": ["accuracy", "loss"],
                    "workers": workers,
                    "figures": {"updates_per_second": 25.0, "update_bytes_per_second": 12_500.0},
                },
                "events": {
                    "events": [
                        {"unix_time": 900.0 + i, "kind": "joined", "text": f"rank {i} has joined"}
                        for i in range(20)
                    ]
                },
                "series": {"curves": [{"name": "loss", "rank": None, "mean": [4.0, 3.0, None, 2]}]},
            }
            for name in runs
        },
    }


def pages(found: dict[str, Any]) -> Callable[[str], Answer]:
    """Return what answers requests for these documents."""

    def answer(target: str) -> Answer:
        path = unquote(urlsplit(target).path).removeprefix("/api/v1/")
        document = found["overview"]
        if path.startswith("runs/"):
            _, name, *rest = path.split("/")
            run = found["runs"].get(name)
            document = run and run[rest[0] if rest else "run"]
        if document is None:
            return 404, {}, b"there is no such run"
        return 200, {}, json.dumps(document).encode()

    return answer
