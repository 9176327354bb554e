"""`Parents`: where a relay can reach its master, and where its workers can."""

from collections.abc import Sequence

from gradwire_protocol.messages.relays import ELSEWHERE_MAX


class Parents:
    """Addresses of the parent: those that were given, and those of which it has told.

    Parameters
    ----------
    given : sequence of str
        In the order to try.
    tells : bool
        Whether workers are told of these.
    """

    def __init__(self, given: Sequence[str], *, tells: bool) -> None:
        self.dialled = ""
        """The last one."""
        self._given = tuple(given)
        self._tells = tells
        self._learned: tuple[str, ...] = ()
        self._tries = 0

    def next(self) -> str:
        """Return the one to dial next."""
        all_of_them = [*self._given, *self._learned]
        self.dialled = all_of_them[self._tries % len(all_of_them)]
        self._tries += 1
        return self.dialled

    def learn(self, masters: Sequence[str]) -> None:
        """Note where else the run can be reached, as the parent says."""
        self._learned = tuple(each for each in masters if each not in self._given)

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """What workers are told: where to go should this relay be lost."""
        return (*(self._given if self._tells else ()), *self._learned)[:ELSEWHERE_MAX]
