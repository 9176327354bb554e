"""`Cuts`: what gets through between the machines of a history and its master.

A machine can be cut off for a while, in one direction or in both, several times at once; and it can
be deaf, and hear nothing of the last that a master says.
"""

from collections import Counter
from collections.abc import Iterable
from itertools import count
from typing import Final

from support.faults import Direction
from support.trainee import Machine

TO_MASTER: Final = "to the master"
FROM_MASTER: Final = "from the master"


class Cuts:
    """Knows who is cut off.

    Parameters
    ----------
    master : str
        The address of the master.
    """

    def __init__(self, master: str) -> None:
        self._master = master
        self._cuts: Counter[tuple[Machine, str]] = Counter()
        """How many times each is cut off."""
        self._deaf: frozenset[Machine] = frozenset()
        self._machine_at: dict[str, Machine] = {}
        self._moves = count()

    def enter(self, machine: Machine, address: str) -> None:
        """Note that a machine has an address."""
        self._machine_at[address] = machine

    def move(self, machine: Machine) -> str:
        """Give a machine another address, and return it."""
        address = f"{machine.name}'{next(self._moves)}"
        self.enter(machine, address)
        return address

    def cut_off(self, machine: Machine, direction: Direction) -> None:
        """Let nothing through any more."""
        self._cuts.update((machine, each) for each in _each(direction))

    def mend(self, machine: Machine, direction: Direction) -> bool:
        """Take one cut back; return whether there was one, and all gets through again."""
        was_cut_off = self.is_cut_off(machine)
        for each in _each(direction):
            self._cuts[machine, each] = max(self._cuts[machine, each] - 1, 0)
        return was_cut_off and not self.is_cut_off(machine)

    def deafen(self, machines: Iterable[Machine]) -> None:
        """Let these hear nothing, and all others what they hear."""
        self._deaf = frozenset(machines)

    def mend_all(self) -> None:
        """Take all cuts back."""
        self._cuts.clear()

    def is_cut_off(self, machine: Machine) -> bool:
        """Return whether something does not get through."""
        return any(self._cuts[machine, each] for each in (TO_MASTER, FROM_MASTER))

    def lets_through(self, source: str, target: str) -> bool:
        """Return whether a datagram from one address to another arrives."""
        to_master = target == self._master
        machine = self._machine_at.get(source if to_master else target)
        if machine is None:
            return True
        if not to_master and source == self._master and machine in self._deaf:
            return False
        return not self._cuts[machine, TO_MASTER if to_master else FROM_MASTER]


def _each(direction: Direction) -> tuple[str, ...]:
    return (TO_MASTER, FROM_MASTER) if direction == "both" else (direction,)
