"""`WorkerAccounts`: what one simulated worker encodes and applies, entered into the `Ledger`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gradwire.participant.participant import Participant
from gradwire.replica.repair import Repair
from gradwire.replica.shared_parameters import SharedParameters
from gradwire.worker.inbox import Rebase
from gradwire.worker.sums import Sum
from gradwire.worker.update_log import OwnUpdate, OwnUpdateLog
from gradwire_codecs import Update
from gradwire_protocol.messages.kinds import WORKERS_MAX

if TYPE_CHECKING:
    from support.simulated_worker import SimulatedWorker


class WorkerAccounts:
    """Watches a participant: its log of own updates, and the repair that hears of all it applies.

    Parameters
    ----------
    worker : SimulatedWorker
    participant : Participant
        That has sent nothing yet, or only its clock.
    """

    def __init__(self, worker: "SimulatedWorker", participant: Participant) -> None:
        self.residual_when_settled: np.ndarray[Any, np.dtype[np.float64]] | None = None
        self._worker = worker
        welcome = participant.welcome
        self._has_rounds = welcome.mode.has_rounds
        self._versions = self._relayed({**welcome.versions, welcome.rank: welcome.sequence})
        """What it has, by our own reckoning."""
        self._shared = shared = participant.shared
        for rank, sequence in self._versions.items():
            for earlier in range(1, sequence + 1):
                worker.run.ledger.note(worker.name, rank, earlier)
        self._log, self._repair = log, repair = participant.worker.own_updates, shared.repair
        for update in log.after(welcome.sequence):  # it has told its clock
            self._note_encoded(update)
        log.append = self._on_encoded  # type: ignore[method-assign]
        repair.note_applied = self._on_applied  # type: ignore[method-assign]
        repair.note_sum = self._on_sum  # type: ignore[method-assign]
        repair.mend = self._on_mended  # type: ignore[method-assign]
        shared.settle = self._on_settled  # type: ignore[method-assign]

    def _on_encoded(self, update: OwnUpdate) -> None:
        self._note_encoded(update)
        OwnUpdateLog.append(self._log, update)

    def _note_encoded(self, update: OwnUpdate) -> None:
        rank = self._shared.rank
        self._worker.run.ledger.encoded(self._worker.name, rank, update.sequence, update.body)
        if not self._has_rounds:
            self._versions[rank] = update.sequence

    def _relayed(self, versions: Mapping[int, int]) -> dict[int, int]:
        """Return the versions of what was relayed: contributions to rounds are not."""
        return {r: s for r, s in versions.items() if r >= WORKERS_MAX or not self._has_rounds}

    def _on_applied(self, total: Sum, changes: Sequence[Update]) -> None:
        name, own = self._worker.name, self._shared.rank
        for rank, sequence in total.span.after.items():
            if rank != own:
                last, before = self._versions.get(rank, 0), total.before[rank]
                assert before == last, f"{name} got {rank}/{max(before, last)} twice or never"
                self._take(rank, sequence)
        Repair.note_applied(self._repair, total, changes)

    def _on_sum(self, versions: Mapping[int, int]) -> None:
        for rank, sequence in self._relayed(versions).items():
            self._take(rank, sequence)
        Repair.note_sum(self._repair, versions)

    def _on_mended(self, rebase: Rebase) -> None:
        if rebase.missed:
            self._worker.on_rebased(rebase.blocks.versions)
            self._rebase(rebase.blocks.versions)
        Repair.mend(self._repair, rebase)

    def _on_settled(self) -> None:
        residual = self._worker.sends_from.residual()
        self.residual_when_settled = np.asarray(residual).astype(np.float64)
        SharedParameters.settle(self._shared)

    def _take(self, rank: int, sequence: int) -> None:
        for each in range(self._versions.get(rank, 0) + 1, sequence + 1):
            self._worker.run.ledger.note(self._worker.name, rank, each)
        self._versions[rank] = sequence

    def _rebase(self, versions: Mapping[int, int]) -> None:
        """Note which updates are in a replica that takes the place of ours, and which are not."""
        worker, run, own = self._worker, self._worker.run, self._shared.rank
        versions = self._relayed(versions)
        for rank in versions.keys() | self._versions.keys():
            if rank == own:
                continue
            for each in range(versions.get(rank, 0) + 1, self._versions.get(rank, 0) + 1):
                # A restarted master has the replica of one worker; others may be ahead of it
                # in what is then sent again.
                assert run.masters > 1 or run.takes_back, "nothing is taken back"
                assert run.state.recovered, "nothing is taken back"
                run.ledger.take_back(worker.name, rank, each)
            self._take(rank, versions.get(rank, 0))
        kept = {} if self._has_rounds else {own: self._versions[own]}
        self._versions = {**versions, **kept}
