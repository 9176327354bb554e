"""`WorkExchange`: what a worker says of the items that it trains on, and what it is granted.

It belongs to the network thread. A message says all there is to say of a work, so that one more,
to a master that has restarted, or after a lost connection, changes nothing else.
"""

from collections.abc import Iterator
from dataclasses import replace

from gradwire.worker.membership import Answer
from gradwire.worker.state import WorkerState
from gradwire_protocol import InvalidMessageError
from gradwire_protocol.messages.work import FINISHED_MAX, Grant, Ledger, Plan, Work


class WorkExchange:
    """One worker's part in the sharing of items."""

    def __init__(self, worker: WorkerState) -> None:
        self._worker = worker
        self._works: dict[str, Work] = {}
        """What there is to say of each work, by its name."""
        self._requests: dict[str, int] = {}
        """By name: the number of the last request."""

    # What the session says.

    def ask(self, plan: Plan, request: int, sequence: int, now: float) -> None:
        """Say that what we held is finished, with this last update of ours, and ask for an item."""
        work = self._works.get(plan.name)
        if work is None or work.plan != plan:
            work = Work(plan, Ledger(), None)
        finished = dict(work.finished)
        if work.held is not None:
            finished[work.held] = sequence
        if len(finished) > FINISHED_MAX:  # others were faster; the oldest may be trained on again
            del finished[next(iter(finished))]
        self._requests[plan.name] = request
        self._say(replace(work, held=None, finished=finished, wants=True))

    def give_back(self, name: str, now: float) -> None:
        """Say that we do not train on what we hold to the end, and want no other item."""
        work = self._works.get(name)
        if work is not None and (work.wants or work.held is not None):
            self._say(replace(work, held=None, wants=False))

    # What the master says.

    def receive(self, grant: Grant) -> None:
        """Take an item, or hear that there is none.

        Raises `InvalidMessageError` if it was not asked for, or is no item of the work.
        """
        work = self._works.get(grant.name)
        if work is None:
            raise InvalidMessageError(f"an item of work {grant.name!r} was not asked for")
        name, number = grant.name, grant.number
        grant.ledger.check(work.plan)
        still_open = set(grant.ledger.open)
        if number is not None and number not in still_open:
            raise InvalidMessageError(f"item {number} of work {name!r} was granted, and is done")
        finished = {n: sequence for n, sequence in work.finished.items() if n in still_open}
        known = replace(work, ledger=grant.ledger, finished=finished)
        if work.held is not None and work.held not in still_open:
            known = replace(known, ledger=work.ledger)  # another worker was faster
        if work.wants:
            self._works[name] = replace(known, held=number, wants=False)
            answer = Answer(self._requests[name], number, grant.refused)
            self._worker.membership.on_answer(name, answer)
        elif number is not None and number not in finished:
            self._say(known)  # it came after we gave up: so it goes back
        else:
            self._works[name] = known

    def to_resend(self) -> Iterator[Work]:
        """Yield what a master may lack."""
        yield from self._works.values()

    # Private.

    def _say(self, work: Work) -> None:
        self._works[work.plan.name] = work
        self._worker.tell(work)
