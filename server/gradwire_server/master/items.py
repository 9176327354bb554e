"""Items: what there is to train on, granted to one worker after the other; and when to stop.

An item goes to one worker at a time. What a worker has finished counts as done once all live
workers have the updates that came of it. What a worker holds that leaves or is lost goes to the
next one that asks. So each item is trained on at least once, whichever worker is lost; and twice
only where a worker was lost in the middle, or held an item for longer than its lease.
"""

import logging

from gradwire_protocol.connection.timers import earliest
from gradwire_protocol.messages.work import WORKS_MAX, Grant, StopTraining, Work
from gradwire_server.series.journal import Happening
from gradwire_server.state.roster import Member
from gradwire_server.state.state import State
from gradwire_server.state.work import WorkLedger

logger = logging.getLogger("gradwire.master")


class Items:
    """Grants items to the workers of a run."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._changed = False
        """Whether a worker may get an item, or hear that all are done."""
        self._due: float | None = None
        """When an item that some worker waits for may be granted again."""

    def receive(self, member: Member, work: Work) -> None:
        """Take what a worker says of a work.

        Raises `InvalidMessageError` if it contradicts itself.
        """
        work.check()
        run = self._state.run
        if run is None:
            return
        plan, rank, now = work.plan, member.rank, self._state.now
        ledger = run.works.get(plan.name)
        if ledger is None:
            if len(run.works) >= WORKS_MAX:
                self._refuse(member, work, f"this run has {WORKS_MAX} works, which is the limit")
                return
            ledger = run.works[plan.name] = WorkLedger(plan)
            logger.info("run %r: work %r begins with %s", run.name, plan.name, plan)
        elif ledger.plan != plan:
            self._refuse(member, work, f"in this run it has {ledger.plan}, not {plan}")
            return
        ledger.merge(work.ledger, now + self._state.config.recovery_seconds)
        held = () if work.held is None else (work.held,)
        ledger.give_back(rank, but=(*held, *work.finished))
        for number in held:
            ledger.hold(rank, number, now)
        for number, sequence in work.finished.items():
            ledger.finish(rank, number, sequence)
        ledger.settle(run.stable_sent.versions)
        ledger.waiting.pop(rank, None)
        if work.wants:
            ledger.waiting[rank] = None
        self._changed = True

    def receive_stop(self, member: Member, stop: StopTraining) -> None:
        """Tell all workers to end their training, because one of them says so."""
        run = self._state.run
        if run is not None and run.stop_reason is None:
            logger.info("%s has all end their training", member.name)
            self.stop_training(stop.reason)

    def stop_training(self, reason: str) -> None:
        """Tell all workers to end their training."""
        run = self._state.run
        assert run is not None
        run.stop_reason = reason
        text = f"run {run.name!r}: all are to end their training: {reason}"
        self._state.note(Happening.STOPPING, text)
        self._state.tell_all(StopTraining(reason))

    def enter(self, member: Member) -> None:
        """Tell a worker that takes part from now on whether it is to end its training."""
        run = self._state.run
        if run is not None and run.stop_reason is not None:
            member.link.send(StopTraining(run.stop_reason))

    def forget(self, member: Member) -> None:
        """Take back what a member held that was removed."""
        run = self._state.run
        if run is None or member.observes:
            return
        accepted = run.accepted(member.rank)
        for ledger in run.works.values():
            returned = ledger.returned
            ledger.lose(member.rank, accepted)
            if ledger.returned > returned:
                logger.info(
                    "items of work %r go back, which %s held: %d",
                    ledger.plan.name,
                    member.name,
                    ledger.returned - returned,
                )
        self._changed = bool(run.works)

    def pause(self, *, paused: bool, epochs: int | None) -> None:
        """Grant no item until further notice, or those of so many epochs, or all again."""
        run = self._state.run
        assert run is not None
        run.items_paused, run.epochs_granted = paused, epochs
        self._changed = True

    def note_stable(self) -> None:
        """Note that all live workers have more updates."""
        run = self._state.run
        if run is not None and run.works:
            for ledger in run.works.values():
                ledger.settle(run.stable_sent.versions)
            self._changed = True

    def conclude(self) -> None:
        """Grant items to workers that wait for one."""
        if self._changed:
            self._changed = False
            self._grant()

    def handle_timer(self) -> None:
        """Grant items again that were held for too long."""
        if self._due is not None and self._state.now >= self._due:
            self._grant()

    def next_timer(self) -> float | None:
        """Return when `handle_timer` has to be called at the latest."""
        return self._due

    # Private.

    def _grant(self) -> None:
        run, self._due = self._state.run, None
        if run is None or not run.founded or run.items_paused:
            return
        for ledger in run.works.values():
            for rank in list(ledger.waiting):
                self._grant_one(ledger, rank)
        due = [each.next_due(self._state.now) for each in run.works.values() if each.waiting]
        self._due = earliest(due)

    def _grant_one(self, ledger: WorkLedger, rank: int) -> None:
        """Grant an item to a worker that waits for one, or tell it that all are done."""
        member = self._state.roster.at(rank)
        assert member is not None, "a member that is gone waits no more"
        number = None
        if not ledger.is_over:
            run = self._state.run
            assert run is not None, "a work is one of a run"
            number = ledger.take(rank, self._state.now, epochs=run.epochs_granted)
            if number is None:
                return
        del ledger.waiting[rank]
        member.link.send(Grant(ledger.plan.name, ledger.ledger(), number))
        self._state.queues_grew = True

    def _refuse(self, member: Member, work: Work, why: str) -> None:
        logger.warning("%s gets no item of work %r: %s", member.name, work.plan.name, why)
        member.link.send(Grant(work.plan.name, work.ledger, None, refused=why))
