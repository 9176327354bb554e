"""`SimulatedThread`: the training thread of a simulated worker, with one master or several."""

from collections.abc import Callable
from typing import Any

from gradwire.errors import GradwireError
from gradwire.replica.waits import Procedure, Wait
from gradwire.worker.membership import Membership
from support.network import Host, SimulatedNetwork

FOREVER = 1e9
"""Seconds of waits that a simulated script does not want to end in vain."""


class SimulatedThread:
    """Plays one procedure after the other, and looks after their waits.

    Parameters
    ----------
    network : SimulatedNetwork
    name : str
        Of the worker.
    """

    def __init__(self, network: SimulatedNetwork, name: str) -> None:
        self.hosts: list[Host] = []
        """The machine that it runs on, once for each connection."""
        self.memberships: list[Membership] = []
        self.plays = False
        """Whether it runs just now."""
        self.procedure: Procedure[Any] | None = None
        """What it does, where that waits."""
        self.then: Callable[[Any], None] = lambda _: None
        self.resume: Callable[[], None] = self.go_on
        """Called to go on: the place to look what comes of it."""
        self.on_failed: Callable[[GradwireError], None] = self._fail
        """Called with what ends the script."""
        self._network = network
        self._name = name
        self._looks = False
        """Whether it will look whether its wait is over."""
        self._wait: Wait | None = None

    @property
    def is_alive(self) -> bool:
        """Whether its process is."""
        return all(host.alive for host in self.hosts)

    @property
    def is_closed(self) -> bool:
        """Whether a membership is over."""
        return any(membership.closed for membership in self.memberships)

    @property
    def now(self) -> float:
        """The time on its clock."""
        return self._network.now + (self.hosts[0].ahead if self.hosts else 0.0)

    def play(self, procedure: Procedure[Any], then: Callable[[Any], None] = lambda _: None) -> None:
        """Do something as far as it goes; it goes on when what it waits for is there."""
        assert self.procedure is None, f"{self._name} does something else"
        self.procedure, self.then = procedure, then
        self.resume()

    def go_on(self) -> None:
        """Resume the procedure, whose wait may not be over yet."""
        procedure, network = self.procedure, self._network
        if procedure is None or not self.is_alive:
            return
        asleep_until = max((host.asleep_until for host in self.hosts), default=network.now)
        if network.now < asleep_until:
            network.at(asleep_until, self.resume)
            return
        self.plays, self._wait = True, None
        try:
            self._wait = next(procedure)
        except StopIteration as end:
            self.procedure = self._wait = None
            self.plays = False
            self.then(end.value)
        except GradwireError as error:
            self.procedure = self._wait = None
            self.plays = False
            self.on_failed(error)
        else:
            assert self._wait.deadline > self.now, f"deadline: {self._name} waits beyond it"
            if self._wait.deadline < self.now + FOREVER / 2:
                ahead = self.now - network.now
                network.at(max(self._wait.deadline - ahead, network.now), self._look)
        finally:
            self.plays = False
        self.turn()

    def turn(self) -> None:
        """Let what its connections are to say leave."""
        for host in self.hosts:
            self._network.turn(host)

    def look_later(self) -> None:
        """Have it look whether its wait is over: a network thread says that something is new."""
        if self._wait is not None and not self._looks:
            self._looks = True
            self._network.after(0, self._look)

    def _fail(self, error: GradwireError) -> None:
        """Raise an error that no membership's end explains."""
        if not self.is_closed:
            raise error

    def _look(self) -> None:
        """Go on if a wait is over."""
        self._looks = False
        wait = self._wait
        if wait is not None and (wait.condition() or self.is_closed or self.now >= wait.deadline):
            self.resume()
