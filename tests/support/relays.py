"""Simulated runs with relays between some workers and the master."""

from functools import partial
from typing import Any

from gradwire_protocol import Credentials, Endpoint, Keyring, Role
from gradwire_protocol.messages.relays import RELAY_ID_BYTES
from gradwire_server.relaying.node import RelayNode
from support.network import Host
from support.simulated_worker import SimulatedWorker
from support.training import MASTER, SimulatedRun


class WithRelays(SimulatedRun):
    """A run whose workers may dial relays."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.relays: dict[str, Host] = {}
        self.parents: dict[str, str] = {}
        super().__init__(*arguments, **options)

    def start_relay(self, name: str = "relay", parent: str = MASTER) -> RelayNode:
        """Let a relay begin that knows nothing."""
        self.parents[name] = parent
        credentials = None
        if self.run_key is not None:
            credentials = Credentials(
                key=self.run_key.worker_key(name, Role.RELAY),
                keyring=Keyring([self.run_key]),
                unix_time_ns=partial(self.unix_time_ns, name),
                instance=name,
            )
        endpoint = Endpoint(
            self.settings.connection,
            random_bytes=self.network.random.randbytes,
            connections_max=self.settings.connections_max,
            credentials=credentials,
        )
        relay_id = self.network.random.randbytes(RELAY_ID_BYTES)
        node = RelayNode(self.settings, [parent], endpoint.connect, relay_id, self.network.now)
        self.relays[name] = self.network.add(name, endpoint, node)
        return node

    def node(self, name: str = "relay") -> RelayNode:
        """Return a relay."""
        application = self.relays[name].application
        assert isinstance(application, RelayNode)
        return application

    def kill_relay(self, name: str = "relay", *, back_after: float | None = None) -> None:
        """Let a relay die without a word, and perhaps another one begin in its place."""
        host = self.relays[name]
        if host.alive:
            self.network.kill(host)
            if back_after is not None:
                begin = partial(self.start_relay, name, self.parents[name])
                self.network.after(back_after, begin)

    def stop_relays(self) -> None:
        """Stop all relays that are alive, in order."""
        for name, host in self.relays.items():
            if host.alive:
                self.node(name).stop("the test is over", self.network.now)
                self.network.after(0, partial(self.network.turn, host))

    def wait_until_open(self) -> None:
        """Wait until all relays are connected."""
        alive = [name for name, host in self.relays.items() if host.alive]
        self.network.run(lambda: all(self.node(name).is_open for name in alive), seconds=60)


class RelayedRun(WithRelays):
    """A run with relays that takes back whoever comes back."""

    takes_back = True

    def join_at(self, dialled: str, n: int = 1) -> list[SimulatedWorker]:
        """Let workers join through a relay, or at the master, and wait until they are live."""
        self.dialled, before = dialled, self.dialled
        try:
            return self.join_and_wait(n)
        finally:
            self.dialled = before

    def wait_until_fed(self, name: str = "relay", n: int | None = None) -> None:
        """Wait until a relay sends so many workers the log, or all that it has."""
        self.network.run(
            lambda: self.node(name).feeds == (self.node(name).children if n is None else n),
            seconds=60,
        )

    def finish(self) -> None:
        """Let every live worker finish; the relays end before it is looked for connections."""
        finishing = [w for w in self.workers if w.live and not w.is_gone]

        def look() -> None:
            if all(worker.closed for worker in finishing):
                self.stop_relays()
            else:
                self.network.after(0.1, look)

        self.network.after(0.1, look)
        super().finish()
