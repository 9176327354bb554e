"""`Admission`: how a worker is let in, or back in, and gets the replica of the run.

A new worker founds the run with its own replica, is sent a snapshot, or completes the part of one
that it has: the master sends the blocks that differ. Blocks repair a damaged replica in the same
way.

A worker that was connected before says which rank it had and which updates it has. The master sends
the updates that it lacks or, if it does not keep them any more, the blocks of the replica that
differ. The worker sends again what the master does not have.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gradwire.errors import RefusedError
from gradwire.worker.inbox import Rebase
from gradwire.worker.snapshot import IncomingReplica, Resync
from gradwire.worker.state import Stage, WorkerState
from gradwire.worker.work import WorkExchange
from gradwire_codecs import pack_block, unpack_block
from gradwire_protocol import InOrder, InvalidMessageError
from gradwire_protocol.delivery.shaped_message import Payload
from gradwire_protocol.messages.admission import (
    Join,
    LogName,
    Place,
    RefusalCode,
    Resume,
    Welcome,
)
from gradwire_protocol.messages.buffers.layout import Buffers
from gradwire_protocol.messages.fields import count_updates
from gradwire_protocol.messages.modes.mode import elements_max, model_of
from gradwire_protocol.messages.replicas import Blocks, Contents, Snapshot, Want
from gradwire_protocol.messages.snapshots import SnapshotFeed, count_blocks, expand_block
from gradwire_protocol.messages.updates import Finish, Leave
from gradwire_protocol.messages.work import StopTraining


class Admission:
    """Takes a worker from its request to training."""

    def __init__(self, worker: WorkerState, work: WorkExchange) -> None:
        self._worker = worker
        self._work = work
        self._membership = worker.membership
        self._own = worker.own
        self._log = worker.log
        self._elements = worker.join.layout.elements
        """Of the replica; before the WELCOME, of our model."""
        self._replica = IncomingReplica(self._elements, worker.membership)
        self._early: list[Snapshot] = []
        """Blocks that came before the first WELCOME, which says how many elements there are."""
        self._feed: SnapshotFeed | None = None
        """Set while the master is sent our replica."""
        self._is_given = False
        """Whether it has all of our replica."""
        self._next_log = LogName()
        """In which the master goes on with our replica."""
        self._log_messages = 0
        """With what we keep of the log, that are on their way to the master."""
        self._contents = -1
        """The number of the message that says what is in our replica."""
        self._controls = InOrder[None](0)
        """Which control messages the master has: it takes them in order."""
        self._after_buffers: tuple[int, Payload] | None = None
        """The number of the message with our buffers, and our replica, which goes after it."""

    # Joining.

    def request(self) -> Join:
        """Return the request to send: to take part, or to take part again."""
        worker, welcome = self._worker, self._worker.welcome
        if welcome is None:
            return worker.join
        log = self._log
        if not worker.took_part:
            return replace(worker.join, run=welcome.run, partial=log.place)
        rank = worker.rank
        # No run can continue with a replica that lacks updates for good.
        place = Place() if worker.gave_up else log.place
        return replace(
            worker.join,
            run=welcome.run,
            rank=rank,
            quantum_exponent=welcome.quantum_exponent,
            mode=welcome.mode,
            resume=Resume(
                rank,
                self._own.sequence,
                place,
                {} if worker.gave_up else log.versions,
                worker.workers,
                min(log.kept_after(self._own), place.position),
                self._own.kept_from,
                worker.term,
                leaving=worker.leave_reason is not None,
                heard_of=tuple(sorted(worker.heard_of - log.versions.keys() - {rank})),
            ),
        )

    def refusal(self, welcome: Welcome) -> RefusedError | None:
        """Return why this worker does not follow the master that lets it in; None if it does.

        Raises `InvalidMessageError` if the master lets it into something else, or again.
        """
        difference = model_of(welcome.layout).difference(self._worker.join.layout)
        if difference is not None:
            raise InvalidMessageError(f"Welcome with another layout: {difference}")
        if self._worker.stage is not Stage.JOINING:
            raise InvalidMessageError(f"Welcome while {self._worker.stage.name}")
        if welcome.term >= self._worker.term:
            return None
        behind = f"this master has term {welcome.term}, and one of {self._worker.term} was followed"
        return RefusedError(RefusalCode.NOT_IN_CHARGE, behind)

    def take_welcome(self, welcome: Welcome) -> None:
        """Take part, for the first time or again.

        Raises `InvalidMessageError` if the master takes us for another worker.
        """
        worker = self._worker
        worker.term = welcome.term
        worker.buffers.start_over()
        self._own.accepted = welcome.sequence
        if worker.took_part:
            self._rejoin(welcome)
        else:
            self._join(welcome)
        if worker.took_part and welcome.resumed:
            self._resume(None)
        else:
            self._go_live_if_complete()

    def _join(self, welcome: Welcome) -> None:
        """Take part for the first time, as the rank that the master gives us."""
        worker = self._worker
        worker.move_to(Stage.FOUNDING if welcome.founder else Stage.SYNCING)
        self._resize(welcome.layout.elements)
        if welcome.compares:
            self._replica.check_has_part()
            self._membership.on_resync(welcome.place.position)
        else:
            self._replica.drop_part()
        if welcome.resumed:
            self._log.continue_in(welcome.place.log)
        else:
            self._log.begin_with(welcome.place, welcome.versions)
        worker.rank = welcome.rank
        worker.welcome = welcome
        self._log.results_kept = welcome.mode.results_kept
        worker.note_roster(welcome.roster)
        self._own.sequence = welcome.sequence
        self._membership.on_welcome(welcome)
        early, self._early = self._early, []
        for block in early:
            self._replica.add_block(expand_block(block, self._elements, unpack_block))

    def _resize(self, elements: int) -> None:
        """Note how many elements the replica has."""
        if elements != self._elements:
            self._elements = elements
            self._replica = IncomingReplica(elements, self._membership)
            self._membership.resize(elements)
        self._log.resize(elements)

    def _rejoin(self, welcome: Welcome) -> None:
        """Take part again, as the rank from before the connection was lost."""
        worker = self._worker
        if welcome.rank != worker.rank:
            raise InvalidMessageError(
                f"Welcome back of rank {welcome.rank}; the rank was {worker.rank}"
            )
        if welcome.founder:
            worker.move_to(Stage.FOUNDING)
            self._send_log(welcome.place)
            self._membership.on_replica_wanted(self._log.versions.get(worker.rank, 0))
            return
        self._own.check_master_can_resume()
        if welcome.resumed:
            self._log.continue_in(welcome.place.log)
        else:
            worker.move_to(Stage.SYNCING)
            self._log.change_to(welcome.place, welcome.versions)
            self._membership.on_resync(welcome.place.position)
        self._own.based_on_max = count_updates(welcome.versions, without=worker.rank)

    # The master has no replica: ours goes there.

    def found(self, values: Payload, buffers: Buffers | None) -> None:
        """Start the run with a replica: little-endian int32, which must not change any more.

        The buffers go first: the master lets others in as soon as it has the replica, and sends
        them both.
        """
        worker = self._worker
        if worker.stage is not Stage.FOUNDING or worker.link is None:
            return
        if buffers is None:
            self._feed = SnapshotFeed.of_replica(values, worker.link, _packed)
        else:
            worker.buffers.set_own(buffers)
            self._after_buffers = worker.link.send(buffers), values

    def on_control_delivered(self, number: int) -> None:
        """Send our replica, if the master has our buffers; go live if it has all."""
        worker = self._worker
        self._controls.insert(number, None)
        self._go_live_if_given()
        if self._after_buffers is not None and self._after_buffers[0] == number:
            values, self._after_buffers = self._after_buffers[1], None
            if worker.stage is Stage.FOUNDING and worker.link is not None:
                self._feed = SnapshotFeed.of_replica(values, worker.link, _packed)

    def found_again(self, values: Payload, accepted: int) -> None:
        """Give a restarted master our replica, as it was at our position of the log.

        `accepted` is the last own update in it.
        """
        worker = self._worker
        if worker.stage is Stage.FOUNDING and worker.is_cut_off and worker.link is not None:
            versions = {**self._log.versions, worker.rank: accepted}
            self._own.accepted = accepted
            self._own.based_on_max = count_updates(versions, without=worker.rank)
            self._contents = worker.link.send(Contents(versions))
            self._feed = SnapshotFeed.of_replica(values, worker.link, _packed)

    def _send_log(self, place: Place) -> None:
        """Send a restarted master what we keep of the log after a place."""
        worker = self._worker
        assert worker.link is not None
        self._next_log = place.log
        for entries in self._log.messages_after(place.position, worker.rank, self._own):
            worker.link.send_log(entries)
            self._log_messages += 1

    def on_block_delivered(self) -> None:
        """Go live if the master has all."""
        if self._feed is not None and self._feed.on_delivered():
            self._feed, self._is_given = None, True
            self._go_live_if_given()

    def on_log_delivered(self) -> None:
        """Go live if the master has all."""
        self._log_messages -= 1
        self._go_live_if_given()

    def _go_live_if_given(self) -> None:
        """Go live when the master has our replica, what is in it, and of the log what we keep."""
        is_said = self._controls.expected > self._contents
        if not self._is_given or not is_said or self._log_messages:
            return
        if self._worker.stage is not Stage.FOUNDING:
            return
        self._is_given = False
        if self._worker.took_part:
            self._log.continue_in(self._next_log)
            self._resume(None)
        else:
            self._go_live(None)

    # The master has a replica: it comes here, or the blocks that differ.

    def take_block(self, block: Snapshot) -> None:
        """Take a block of the replica."""
        if self._worker.stage is Stage.JOINING and not self._worker.took_part:
            if len(self._early) >= count_blocks(elements_max(self._worker.join.layout)):
                raise InvalidMessageError(f"{len(self._early)} blocks before WELCOME")
            self._early.append(block)
            return
        block = expand_block(block, self._elements, unpack_block)
        resync = self._replica.resync
        if resync is not None:
            if resync.add_block(block):
                self._end_resync(resync)
        elif self._worker.stage in (Stage.JOINING, Stage.SYNCING):
            self._replica.add_block(block)
            self._go_live_if_complete()
        # Otherwise we went live without it, or are leaving.

    def take_blocks(self, blocks: Blocks) -> None:
        """Compare our replica with the master's: ours lacks updates, or is damaged."""
        worker = self._worker
        if worker.stage not in (Stage.SYNCING, Stage.LIVE, Stage.LEAVING):
            raise InvalidMessageError(f"Blocks while {worker.stage.name}")
        missed = worker.stage is Stage.SYNCING
        self._replica.resync = Resync(blocks, self._elements, missed=missed)
        if not worker.took_part:
            self._replica.check_has_part()
            self.compare_part()
        elif worker.leave_reason is not None:
            self.want(blocks, ())
        else:
            self._membership.on_blocks(blocks, missed=missed)

    def compare_part(self) -> None:
        """Compare our part of a replica, once the updates that the master has are here."""
        differing = self._replica.compare_part(self._log.position)
        if differing is not None:
            assert self._replica.resync is not None
            self.want(self._replica.resync.blocks, differing)

    def want(self, blocks: Blocks, numbers: Sequence[int]) -> None:
        """Ask for the blocks that differ from the master's, if the comparison is still current."""
        resync, link = self._replica.resync, self._worker.link
        if resync is None or resync.blocks is not blocks or link is None:
            return  # the connection was lost meanwhile, and may be back
        link.send(Want(tuple(numbers)))
        resync.ask(numbers)
        if not numbers:
            self._end_resync(resync)

    def cancel_comparison(self) -> None:
        """End a comparison, if there is one: a worker that leaves needs no blocks."""
        if self._replica.resync is not None:
            self.want(self._replica.resync.blocks, ())

    def start_over(self) -> None:
        """Forget what the last attempt, or the last connection, has brought."""
        worker = self._worker
        self._replica.start_over(keep=worker.welcome is not None and not worker.took_part)
        self._feed = self._after_buffers = None
        self._is_given, self._log_messages = False, 0
        self._contents, self._controls = -1, InOrder(0)
        self._early.clear()

    def _end_resync(self, resync: Resync) -> None:
        """Continue with the result of a comparison."""
        self._replica.resync = None
        rebase = resync.rebase
        if not self._worker.took_part:
            self._go_live(self._replica.take_completed_part(rebase.values))
        elif resync.missed and self._worker.leave_reason is not None:
            self._worker.gave_up = True
            self._resume(None)
        elif resync.missed:
            self._resume(rebase)
        else:
            self._membership.on_repaired(rebase if rebase.values else None)

    # Going live.

    def _go_live_if_complete(self) -> None:
        """Go live when both WELCOME and snapshot are here; either may come first."""
        values = self._replica.take_snapshot() if self._worker.stage is Stage.SYNCING else None
        if values is not None:
            self._go_live(values)

    def _go_live(self, values: memoryview | None) -> None:
        """Go live with the replica that has come, or (None) with our own."""
        self._worker.move_to(Stage.LIVE)
        self._worker.took_part = True
        self._worker.reconnection.lost = None
        self._membership.on_live(values)

    def _resume(self, rebase: Rebase | None) -> None:
        """Go live again after a lost connection, and send what the master does not have."""
        worker = self._worker
        worker.move_to(Stage.LIVE)
        worker.reconnection.lost = None
        self._log.settle()
        self._own.on_delivered_up_to(self._own.accepted)
        self._membership.on_resumed(rebase)
        for update in self._own.missing():
            worker.send(update)
        assert worker.link is not None
        for buffers in worker.buffers.to_resend(worker.rank):
            worker.link.send(buffers)
        for work in self._work.to_resend():
            worker.link.send(work)
        if self._membership.stop_reason is not None:
            worker.link.send(StopTraining(self._membership.stop_reason))
        if worker.has_finished:
            worker.link.send(Finish(self._own.sequence))
        if worker.leave_reason is not None:
            worker.link.send(Leave(self._own.sequence, worker.leave_reason))
            worker.move_to(Stage.LEAVING)


def _packed(block: memoryview) -> bytes:
    return pack_block(np.frombuffer(block, "<i4").astype(np.int32, copy=False))
