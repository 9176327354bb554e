"""What documents say of workers."""

from collections.abc import Collection
from itertools import islice
from typing import Final

from gradwire_protocol.messages.logged.histograms import RATIO_PREFIX
from gradwire_server.http.schemas import Logged, Numbers, Worker, finite
from gradwire_server.series.series import Series
from gradwire_server.state.roster import Member
from gradwire_server.state.run import Run
from gradwire_server.state.runs_over import RunOver
from gradwire_udp import show_address

OWN_PREFIX: Final = "gradwire/"
"""Of the series that a session reports by itself."""

SCALARS_MAX: Final = 16
"""Most scalars of a script that a worker is shown with; all are in its series."""

HELD_RATIO: Final = 0.5
"""A worker that waits for slower ones for so much of its time is said to be held up."""

SILENT_SECONDS: Final = 1.0
"""A worker that was sent something so long ago, and was not heard of since, is called silent. It
may be dead: an acknowledgement takes a round trip."""


def held_by(figures: Numbers) -> int | None:
    """Return the rank of the slower worker that one waits for most of its time, if it does."""
    ratio, rank = figures.get("wait_ratio"), figures.get("waited_for")
    return None if rank is None or ratio is None or ratio < HELD_RATIO else int(rank)


def described(member: Member, run: Run, awaited: Collection[int], now: float) -> Worker:
    """Return a worker as the roster shows it."""
    logged = logged_last(run.series, member.rank)
    connection = member.link.connection
    heard = connection.last_heard
    return {
        "rank": member.rank,
        "name": member.shown_name,
        "key_name": member.key_name,
        "address": shown_address(connection.address),
        "state": state_of(member, now),
        "heard_seconds": None if heard is None else round(max(now - heard, 0.0), 3),
        "rtt_seconds": connection.rtt,
        "sent_bytes": connection.message_bytes_sent,
        "queued_bytes": connection.bytes_queued,
        "lacks_updates": run.relay.lacks(member),
        "awaited": member.rank in awaited,
        "held_by": held_by(logged["figures"]) if member.last_sequence is None else None,
        "updates": run.relay.versions.get(member.rank, 0),
        **logged,
    }


def parted(rank: int, over: RunOver) -> Worker:
    """Return a worker of a run that is over, as it was last."""
    worker = over.workers[rank]
    return {
        "rank": rank,
        "name": worker.name,
        "key_name": worker.key_name,
        "address": shown_address(worker.address),
        "state": worker.state,
        "heard_seconds": None,
        "rtt_seconds": None,
        "sent_bytes": 0,
        "queued_bytes": 0,
        "lacks_updates": 0,
        "awaited": False,
        "held_by": None,
        "updates": over.versions.get(rank, 0),
        **logged_last(over.series, rank),
    }


def logged_last(series: Series, rank: int) -> Logged:
    """Return what a worker has logged last."""
    newest = series.newest(rank)
    values = {n: value for n, (_, value) in newest.items() if not n.startswith(RATIO_PREFIX)}
    own = {name: value for name, value in values.items() if name.startswith(OWN_PREFIX)}
    scalars = {name: value for name, value in values.items() if name not in own}
    return {
        "step": max((step for step, _ in newest.values()), default=None),
        "figures": finite({n.removeprefix(OWN_PREFIX): value for n, value in own.items()}),
        "scalars": finite(dict(islice(scalars.items(), SCALARS_MAX))),
    }


def shown_address(address: object) -> str:
    """Return the address of a worker for people."""
    return show_address(address) if isinstance(address, tuple) else str(address)


def state_of(member: Member, now: float) -> str:
    """Return what a worker is doing, in a word."""
    connection = member.link.connection
    if member.quarantine is not None:
        return "quarantined"
    asked, heard = connection.unanswered_since, connection.last_heard
    if asked is not None and heard is not None and now - max(asked, heard) > SILENT_SECONDS:
        return "silent"
    if member.last_sequence is not None:
        return "finished" if member.leaving is None else "leaving"
    return member.phase.name.lower()
