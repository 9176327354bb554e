"""`RelayedRun`: a simulated run with relays between some workers and the master."""

from functools import partial

from gradwire_protocol import Credentials, Endpoint, Keyring, Role
from gradwire_server.relaying.node import RelayNode
from support.network import Host
from support.simulated_worker import SimulatedWorker
from support.training import MASTER, SimulatedRun


class RelayedRun(SimulatedRun):
    """A run whose workers may dial relays."""

    def begin_relays(self) -> None:
        """Have the dictionaries that the others need."""
        self.relays: dict[str, Host] = {}
        self.parents: dict[str, str] = {}

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
        node = RelayNode(self.settings, [parent], endpoint.connect, self.network.now)
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
                parent = self.parents[name]
                self.network.after(back_after, partial(self.start_relay, name, parent))

    def join_at(self, dialled: str, n: int = 1) -> list[SimulatedWorker]:
        """Let workers join through a relay, or at the master, and wait until they are live."""
        self.dialled, before = dialled, self.dialled
        try:
            return self.join_and_wait(n)
        finally:
            self.dialled = before

    def wait_until_open(self) -> None:
        """Wait until all relays are connected."""
        self.network.run(
            lambda: all(self.node(n).is_open for n, h in self.relays.items() if h.alive), seconds=60
        )

    def finish(self) -> None:
        """Let every live worker finish; the relays end before it is looked for connections."""
        run = self
        finishing = [w for w in self.workers if w.live and not w.is_gone]

        def look() -> None:
            if all(worker.closed for worker in finishing):
                for host in run.relays.values():
                    if host.alive:
                        application = host.application
                        assert isinstance(application, RelayNode)
                        application.stop("the test is over", run.network.now)
                        run.network.turn(host)
            else:
                run.network.after(0.1, look)

        self.network.after(0.1, look)
        super().finish()
