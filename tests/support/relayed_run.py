"""`RelayedRun`: a simulated run with relays between workers and the master."""

from functools import partial
from random import Random
from typing import Final

from gradwire_protocol import Credentials, Endpoint, Keyring, Role, RunKey
from gradwire_protocol.messages.kinds import EndCode
from gradwire_protocol.messages.layout import Layout
from gradwire_protocol.messages.modes.mode import Mode
from gradwire_server.config import BACKLOG_BYTES_MAX, MasterConfig, Topology
from gradwire_server.intermediary.intermediary import Intermediary
from gradwire_server.metrics import Departure, RunMetrics
from gradwire_server.state.roster import Member
from gradwire_server.state.run import Run
from support.network import Host, Link, SimulatedNetwork
from support.simulated_worker import SimulatedWorker
from support.training import MASTER, SimulatedRun
from support.two_masters import PairedRun

IDLE_SECONDS: Final = 3.0
RECOVERY_SECONDS: Final = 8.0


def settings(topology: Topology, backlog_bytes_max: int) -> MasterConfig:
    """Return the settings of a master, and of its relays."""
    return MasterConfig(
        idle_timeout_seconds=IDLE_SECONDS,
        recovery_seconds=RECOVERY_SECONDS,
        topology=topology,
        relay_backlog_bytes_max=backlog_bytes_max,
    )


class RelayedRun(SimulatedRun):
    """A master, relays and workers.

    Parameters
    ----------
    parents : sequence of str
        Of each relay, before whom it stands: `MASTER`, or ``relay0``, ``relay1`` and so on.
    role : Role
        In the keys of relays.
    keeps_replicas : bool
        Whether each relay keeps a replica.
    """

    dial_tries = 5

    def __init__(
        self,
        seed: int = 1,
        link: Link | None = None,
        *,
        parents: tuple[str, ...] = (MASTER, MASTER),
        elements: int = 400,
        run_key: RunKey | None = None,
        watches_transport: bool = True,
        topology: Topology = "tree",
        role: Role = Role.RELAY,
        resumed: Run | None = None,
        backlog_bytes_max: int = BACKLOG_BYTES_MAX,
        master: MasterConfig | None = None,
        idle_timeout_seconds: float = IDLE_SECONDS,
        connect_timeout_seconds: float = 2.0,
        network: SimulatedNetwork | None = None,
        where: str = "",
        layout: Layout | None = None,
        keeps_replicas: bool = False,
    ) -> None:
        self.parents = parents
        self.keeps_replicas = keeps_replicas
        self.role = role
        self.relays: dict[str, Intermediary] = {}
        self.relay_hosts: dict[str, Host] = {}
        super().__init__(
            seed,
            link,
            elements=elements,
            idle_timeout_seconds=idle_timeout_seconds,
            connect_timeout_seconds=connect_timeout_seconds,
            master=master or settings(topology, backlog_bytes_max),
            run_key=run_key,
            resumed=resumed,
            watches_transport=watches_transport,
            network=network,
            where=where,
            layout=layout,
        )
        self.mode = Mode()
        self.takes_back = True
        for number in range(len(parents)):
            self.start_relay(f"relay{number}{where}")

    # Relays.

    def start_relay(self, name: str) -> None:
        """Let a relay begin that knows nothing."""
        parent = self.parent_of(name)
        endpoint = Endpoint(
            self.settings.connection,
            random_bytes=self.network.random.randbytes,
            connections_max=self.settings.connections_max,
            credentials=self._credentials_of(name),
        )
        relay = Intermediary(
            self.settings,
            RunMetrics(),
            name,
            parent,
            endpoint.connect,
            self.network.now,
            keeps_replica=self.keeps_replicas,
        )
        self.relays[name] = relay
        self.relay_hosts[name] = self.network.add(name, endpoint, relay)
        self.network.turn(self.relay_hosts[name])

    def parent_of(self, name: str) -> str:
        """Return before whom a relay stands."""
        number = int(name.removeprefix("relay").removesuffix(self.where))
        return self.parents[number] + self.where

    def kill_relay(self, name: str, *, back_after: float | None = None) -> None:
        """Let a relay die without a word."""
        if self.relay_hosts[name].alive:
            self.network.kill(self.relay_hosts[name])
            if back_after is not None:
                self.network.after(back_after, partial(self.start_relay, name))

    def kill_a_worker(self, random: Random) -> None:
        """Let one of several workers die without a word."""
        alive = [worker for worker in self.workers if worker.live and not worker.is_gone]
        if len(alive) > 1:
            self.network.kill(random.choice(alive).host)

    def send_away(self, random: Random) -> None:
        """Let a relay end the connection of a worker while it is cut off from its parent.

        The worker does not reach the relay any more, and goes to the master. So that may hear of
        the worker before it hears what the relay has merged.
        """
        name = random.choice([*self.relays])
        relay, parent = self.relays[name], self.parent_of(name)
        if not self.relay_hosts[name].alive or not relay.is_linked or not relay.roster:
            return
        member = random.choice(list(relay.roster))
        self.separate(name, parent, random.uniform(2.4, 2.95))
        self.network.after(0.3, partial(self._expel, name, member))

    def _expel(self, name: str, member: Member) -> None:
        relay, host = self.relays[name], self.relay_hosts[name]
        connection = member.link.connection
        if host.alive and relay.roster.of(connection) is member:
            assert relay._serving is not None
            relay._serving.expel(
                connection, EndCode.TOO_SLOW, "it is sent away", Departure.TOO_SLOW
            )
            self.network.turn(host)
            self.network.after(0.2, partial(self.separate, name, member.join.name, 6.0))

    @property
    def linked(self) -> list[str]:
        """The relays that are alive and stand before their parents."""
        return [
            name
            for name, relay in self.relays.items()
            if self.relay_hosts[name].alive and relay.is_linked
        ]

    def wait_for_relays(self) -> None:
        """Wait until all relays that are alive stand before their parents."""
        self.network.run(
            lambda: all(
                self.relays[name].is_linked for name, host in self.relay_hosts.items() if host.alive
            ),
            seconds=60,
        )

    def _credentials_of(self, name: str) -> Credentials | None:
        if self.run_key is None:
            return None
        return Credentials(
            key=self.run_key.worker_key(name, self.role),
            keyring=Keyring([self.run_key]),
            unix_time_ns=partial(self.unix_time_ns, name),
            instance=name,
        )

    # Workers.

    def join_at(self, *names: str) -> list[SimulatedWorker]:
        """Let a worker join at each of these relays or masters, and wait until all are live."""
        joining = []
        for name in names:
            self.dialled = name
            joining.append(self.join(self.random.choice(["local", "shared"])))
        self.dialled = self.address
        self.network.run(lambda: all(w.live for w in joining), seconds=120)
        return joining

    def finish_all(self) -> None:
        """Let all finish, and check what has to be true then."""
        with_relays = self.master_endpoint
        self.finish_workers()
        self.stop_relays()
        self.network.run(lambda: not len(with_relays), seconds=60)
        assert self.master.run is None

    def stop_relays(self) -> None:
        """Let all relays end."""
        for name, host in self.relay_hosts.items():
            if host.alive:
                self.relays[name].stop("the test is over", self.network.now)
                self.network.turn(host)


class RelayedPair(PairedRun, RelayedRun):
    """A primary and its standby, relays and workers."""

    topology = "tree"

    def finish_all(self) -> None:
        """Let all finish with the master in charge, and check what has to be true then."""
        PairedRun.finish_all(self)
        self.stop_relays()
