"""`PairedRun`: a simulated run with a primary and its standby, and what must be true of both.

After every turn of any host it is checked that no term was ever both the primary's and the
standby's, that who is in charge of nothing has no workers, and that no worker goes back to an
earlier term. What any worker was ever told to be stable has to be there in the end.
"""

from functools import partial

from gradwire_protocol import Credentials, Endpoint, Keyring, Role, RunKey
from gradwire_protocol.messages.fields import covers
from gradwire_server.config import MasterConfig
from gradwire_server.master.master import Master
from gradwire_server.metrics import ServerMetrics
from gradwire_server.runs.runs import Runs
from gradwire_server.standby.standby import Standby
from support.network import Host, Link
from support.simulated_worker import SimulatedWorker
from support.training import MASTER, SimulatedRun

STANDBY = "standby"
IDLE_SECONDS = 3.0
NOTHING = Link(loss=1.0)


class PairedRun(SimulatedRun):
    """Two masters and their workers.

    Parameters
    ----------
    seed : int
    link : Link
    run_key : RunKey, optional
    elements : int
    """

    def __init__(
        self, seed: int, link: Link, *, run_key: RunKey | None = None, elements: int = 400
    ) -> None:
        self.terms: dict[int, str] = {}
        """Who was in charge of each; one that is started anew is the same."""
        self.followed: dict[SimulatedWorker, int] = {}
        """By worker: the term that it was in last."""
        self.told_stable: dict[int, int] = {}
        """By rank: what any worker was ever told that everyone has."""
        config = MasterConfig(
            idle_timeout_seconds=IDLE_SECONDS,
            recovery_seconds=4.0,
            takeover_seconds=1.0,
            standby=STANDBY,
        )
        super().__init__(
            seed,
            link,
            elements=elements,
            idle_timeout_seconds=IDLE_SECONDS,
            connect_timeout_seconds=2.0,
            master=config,
            run_key=run_key,
        )
        self.takes_back = True
        self.primary_host = self.master_host
        self.start_standby()
        after_turn = self.network.after_turn

        def checked(host: Host) -> None:
            after_turn(host)
            self.check_masters()

        self.network.after_turn = checked

    # Masters.

    def start_master(self, *arguments: object) -> None:
        """Let a primary begin that knows nothing."""
        super().start_master(*arguments)  # type: ignore[arg-type]
        self.primary, self.primary_host = self.master, self.master_host
        self.primary_runs = self.runs

    def start_standby(self) -> None:
        """Let a standby begin that knows nothing."""
        config = MasterConfig(
            idle_timeout_seconds=IDLE_SECONDS,
            recovery_seconds=4.0,
            takeover_seconds=1.0,
            standby_of=MASTER,
        )
        runs = Runs(config, ServerMetrics())
        self.standby = runs.first
        self.standby_runs = runs
        credentials = None
        if self.run_key is not None:
            credentials = Credentials(
                key=self.run_key.worker_key(STANDBY, Role.STANDBY),
                keyring=Keyring([self.run_key]),
                unix_time_ns=self.unix_time_ns,
                instance=STANDBY,
            )
        endpoint = Endpoint(
            config.connection,
            random_bytes=self.network.random.randbytes,
            connections_max=config.connections_max,
            credentials=credentials,
        )
        application = Standby(runs, partial(endpoint.connect, MASTER), self.network.now)
        self.standby_endpoint = endpoint
        self.standby_host = self.network.add(STANDBY, endpoint, application)

    def kill_primary(self, *, back_after: float | None = None) -> None:
        """Let the primary die without a word."""
        if self.primary_host.alive:
            self.network.kill(self.primary_host)
            if back_after is not None:
                self.network.after(back_after, self.start_master)

    def kill_standby(self, *, back_after: float | None = None) -> None:
        """Let the standby die without a word."""
        if self.standby_host.alive:
            self.network.kill(self.standby_host)
            if back_after is not None:
                self.network.after(back_after, self.start_standby)

    @property
    def in_charge(self) -> Master | None:
        """The master of the highest term that is alive and in charge."""
        masters = [
            master
            for master, host in (
                (self.primary, self.primary_host),
                (self.standby, self.standby_host),
            )
            if host.alive and master.terms.in_charge
        ]
        return max(masters, key=lambda each: each.terms.term, default=None)

    def wait_for_standby(self) -> None:
        """Wait until the standby has a copy of the run, and knows all voters."""
        workers = [worker for worker in self.workers if not worker.is_gone]
        application = self.standby_host.application
        assert isinstance(application, Standby)
        self.network.run(
            lambda: len(application.voters) == len(workers) and application.following.complete,
            seconds=60,
        )

    def begin(self, workers: int) -> None:
        """Let workers join, and the standby have what they have."""
        self.network.run(lambda: self.primary.terms.in_charge, seconds=30)
        self.join_and_wait(workers)
        self.wait_for_standby()

    def finish_all(self) -> None:
        """Let all finish with whoever is in charge, and check what has to be true then."""
        master = self.in_charge
        assert master is not None
        self.runs = self.standby_runs if master is self.standby else self.primary_runs
        self.master_endpoint = (
            self.standby_endpoint if master is self.standby else self.primary_host.endpoint
        )
        finishing = [w for w in self.workers if w.live and not w.is_gone]
        for worker in finishing:
            self.network.after(0.2 * self.random.random(), worker.finish)
        self.network.run(
            lambda: sum(w.try_to_complete() for w in finishing) == len(finishing), seconds=300
        )
        assert master.run is not None
        self.check_the_end(finishing, master.run)
        assert covers(master.run.relay.versions, self.told_stable), "what is stable is never lost"
        self.network.run(lambda: all(w.closed for w in finishing), seconds=60)
        assert [w.error for w in finishing] == [None] * len(finishing)

    # What has to be true.

    def check_masters(self) -> None:
        """Compare masters and workers with what there was of them before."""
        for master, host in (
            (self.primary, self.primary_host),
            (self.standby, self.standby_host),
        ):
            if not host.alive:
                continue
            if master.terms.in_charge:
                if master.run is None or not master.run.founded:
                    continue  # nothing is accepted yet
                term = master.terms.term
                name = host.address
                assert self.terms.setdefault(term, name) == name, f"term {term} is both masters'"
            else:
                assert not master.roster.workers, "who is in charge of nothing has no workers"
        for worker in self.workers:
            term = worker.worker.state.term
            assert term >= self.followed.get(worker, 0), "terms never go back"
            self.followed[worker] = term
            for rank, sequence in worker.stable.items():
                self.told_stable[rank] = max(self.told_stable.get(rank, 0), sequence)
