"""`RelayedHistory`: a history in which workers reach the master through relays, which may die."""

from functools import partial
from pathlib import Path
from typing import Final

from gradwire_protocol.errors import RefusedError
from gradwire_protocol.messages.admission import RefusalCode
from gradwire_protocol.messages.modes.mode import Mode
from support.cuts import FROM_MASTER, TO_MASTER, Cuts
from support.histories import History
from support.network import Host
from support.plans import SHARING, Plan
from support.playing import FOLDER, play
from support.relays import WithRelays
from support.trace import Trace
from support.trainee import Machine, Trainee
from support.training import MASTER

RELAY: Final = "relay"
BEHIND: Final = "behind"
"""A relay of the relay."""

NEAR: Final = frozenset({MASTER, RELAY, BEHIND})
"""What a machine is cut off from when it is cut off."""

BACK_SECONDS: Final = (0.01, 0.3, 2.0)
"""After which another relay begins in the place of one that was killed."""


class RelayedCuts(Cuts):
    """Cuts machines off from the master, and from relays alike."""

    def lets_through(self, source: str, target: str) -> bool:
        """Return whether a datagram from one address to another arrives."""
        to_master = target in NEAR
        machine = self._machine_at.get(source if to_master else target)
        if machine is None:
            return True
        if not to_master and source in NEAR and machine in self._deaf:
            return False
        return not self._cuts[machine, TO_MASTER if to_master else FROM_MASTER]


class RelayedHistory(WithRelays, History):
    """A history with a relay, and in half of them another one behind it.

    Parameters
    ----------
    plan : Plan
    trace : Trace
    kills : bool
        Whether relays are killed. What a relay alone has acknowledged is lost where both it, or its
        connection, and its worker are: then what has to be there is only what the master had.
    """

    def __init__(self, plan: Plan, trace: Trace, *, kills: bool) -> None:
        self.kills = kills
        self.is_deep = plan.seed % 4 < 2
        self.fed_most = 0
        self._acknowledged: dict[int, int] = {}
        """By rank: what workers were told that were killed, and relays have to pass on."""
        self._open: set[str] = set()
        """Relays that are connected."""
        self._all_stayed = not kills
        """Whether no relay has lost its connection."""
        super().__init__(plan, trace)
        self.cuts = RelayedCuts(MASTER)
        self.start_relay(RELAY)
        if self.is_deep:
            self.start_relay(BEHIND, RELAY)
        if kills:
            for act in range(len(plan.acts)):
                at = sum(each.seconds for each in plan.acts[:act]) + 1.0
                for _ in range(self.random.randint(1, 2)):
                    self.network.after(at + self.random.uniform(0, 4), self._kill_one)

    def _kill_one(self) -> None:
        name = self.random.choice(sorted({RELAY, BEHIND} & self.relays.keys()) or [RELAY])
        if name in self.relays and self.relays[name].alive and self.is_training:
            self.note(name, "is killed")
            self.kill_relay(name, back_after=self.random.choice(BACK_SECONDS))

    def _start(self, machine: Machine) -> None:
        doors = [MASTER, *self.relays, *self.relays]
        self.dialled = self.random.choice(doors)
        super()._start(machine)

    def on_closed(self, process: Trainee) -> None:
        """Let one begin again of which the relay alone had the first parameters."""
        welcome, error = process.worker.state.welcome, process.error
        if (
            self.kills
            and isinstance(error, RefusedError)
            and error.code == RefusalCode.NOT_EXPECTED
            and welcome is not None
            and welcome.founder
        ):
            self.network.kill(process.host)
            self.start_later(process.machine, 0.5)
        else:
            super().on_closed(process)

    def unrest(self) -> list[str]:
        alive = [name for name, host in self.relays.items() if host.alive]
        here = self.runs.relays
        closed = [f"{name} is not open" for name in alive if not self.node(name).is_open]
        if here != len(alive):
            closed.append(f"of {len(alive)} relays, the master has {here}")
        run = self.master.run
        if self._all_stayed and run is not None:
            lacking = [r for r, s in self._acknowledged.items() if run.accepted(r) < s]
            closed += [f"an update of rank {rank} was not passed on" for rank in lacking]
        return closed

    def _require(self, rank: int, sequence: int) -> None:
        run = self.master.run
        self._acknowledged[rank] = max(self._acknowledged.get(rank, 0), sequence)
        super()._require(rank, min(sequence, 0 if run is None else run.accepted(rank)))

    def _after_turn(self, host: Host) -> None:
        super()._after_turn(host)
        opened = {name for name in self.relays if self.node(name).is_open}
        if self.relays and (self._open - opened or self.runs.relays < len(self._open)):
            self._all_stayed = False
        self._open = opened
        for name, each in self.relays.items():
            if each is host:
                self.fed_most = max(self.fed_most, self.node(name).feeds)
        run = self.founded
        if run is not None and run.finished and self.master.run is None and self.relays:
            self.stop_relays()
            self.relays = {}


def play_with_relays(
    seed: int, mode: Mode = SHARING, *, kills: bool, folder: Path = FOLDER
) -> RelayedHistory:
    """Carry out the history of a seed with relays; see `play`."""
    history = play(seed, mode=mode, folder=folder, make=partial(RelayedHistory, kills=kills))
    assert isinstance(history, RelayedHistory)
    return history
