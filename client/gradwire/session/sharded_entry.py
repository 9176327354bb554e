"""`enter_all`: a worker enters the runs of several masters, without threads."""

from collections.abc import Callable, Sequence

from gradwire.errors import UsageError
from gradwire.participant.sharded import ShardedParticipant
from gradwire.participant.together import together
from gradwire.replica.waits import Procedure
from gradwire.session.assembly import bound_of, reports_of, share_factors
from gradwire.session.entry import Entry
from gradwire.target.part import Part

Dial = Callable[[int, Part, int | None], Entry]
"""Begins to dial a master, by its number, for a part of the target; the last one is the rank to ask
for, None for any."""


def enter_all(
    parts: Sequence[Part], dial: Dial, *, rank: int | None, observes: bool
) -> Procedure[ShardedParticipant]:
    """Wait until this worker takes part in the runs of all masters, each with one of the parts.

    The worker that begins the run at the first master has to begin all of them, or a model would
    begin with parts of several workers' parameters. So it sends its own to the first master only
    when all others have let it in: before that no other worker gets as far.

    Parameters
    ----------
    parts : sequence of Part
        In the order of the masters.
    dial : callable
        The first master is also the one for all that is not parameters.
    rank : int or None
        The rank to ask the first master for; the others are asked for the one that it gives.
    observes : bool
        Whether this worker only receives, and has a rank of its own at each master.

    Raises
    ------
    UsageError
        If some of the masters have a run and others do not.
    GradwireError
        That says why else it cannot.
    """
    entries: list[Entry] = []
    for number, part in enumerate(parts):
        entries.append(entry := dial(number, part, rank))
        yield from together([(entry.membership, entry.meet_master())])
        welcome = entries[0].membership.welcome
        assert welcome is not None
        rank = None if observes else welcome.rank
    _check_that_all_begin(entries)
    for entry in entries:
        entry.begin_timeout()
    shards = yield from together([(each.membership, each.take_part()) for each in entries])
    first, *others = shards
    features = entries[0].features_of(first)
    for other in others:
        share_factors(first, other)
        other.features = bound_of(other)
    participant = ShardedParticipant(shards, parts)
    participant.features = [*features, *reports_of(shards, parts[0].whole)]
    return participant


def _check_that_all_begin(entries: Sequence[Entry]) -> None:
    """Raise if this worker's parameters would begin the run at some masters, and not at others."""
    welcomes = [(entry.master, entry.membership.welcome) for entry in entries]
    begins = [master for master, welcome in welcomes if welcome is not None and welcome.founder]
    others = [master for master, _ in welcomes if master not in begins]
    if begins and others:
        raise UsageError(
            f"the run has begun at {', '.join(others)}, and not at {', '.join(begins)}: the model "
            "would be made of parts that do not belong together. A master has lost its part, or a "
            f"worker has died while it began the run. Restart {', '.join(begins)} with --resume "
            "auto and the folder of its checkpoints, or, without checkpoints, all masters"
        )
