"""`Totals`: what all runs of a daemon take together, for the limits that hold for all of them."""

from typing import Protocol

from gradwire_server.state.roster import Roster
from gradwire_server.state.run import Run


class Counted(Protocol):
    """What is counted of a master: its run, and who takes part in it."""

    roster: Roster
    run: Run | None


class Totals:
    """Sums over the masters of one daemon."""

    def __init__(self) -> None:
        self._masters: list[Counted] = []

    def add(self, master: Counted) -> None:
        """Count a master from now on."""
        self._masters.append(master)

    def remove(self, master: Counted) -> None:
        """Do not count a master any more."""
        self._masters.remove(master)

    def runs(self) -> int:
        """Return the number of runs in progress."""
        return len(self._runs())

    def members(self) -> int:
        """Return the number of workers, observers and standbys that take part in any run."""
        return sum(len(master.roster) for master in self._masters)

    def elements(self, *, without: Run | None = None) -> int:
        """Return the number of parameters of all runs but one."""
        return sum(run.layout.elements for run in self._runs() if run is not without)

    def sum_bytes(self) -> int:
        """Return the memory that logs take beyond their limit, in bytes."""
        return sum(run.relay.sum_bytes for run in self._runs())

    def _runs(self) -> list[Run]:
        return [master.run for master in self._masters if master.run is not None]
