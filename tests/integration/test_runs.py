"""Three runs at one real master at once: one diverges, one is ended by order, one finishes."""

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import torch
from torch import nn

import gradwire
from gradwire_udp.files.checkpoints import names_in
from support.health import status_of
from support.local_master import MasterProcess
from support.processes import completed
from support.sessions import finish
from support.waiting import PROCESS, wait_for_process
from support.wording import naming

WORKERS = 2
MODELS: dict[str, Callable[[], nn.Module]] = {
    "finishes": partial(nn.Linear, 4, 1),
    "is ended": partial(nn.Linear, 6, 2),
    "diverges": partial(nn.Linear, 8, 3),
}


@dataclass
class Worker:
    """A model in training, and its session."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    session: gradwire.Session

    @classmethod
    def join(cls, run: str, master: str, rate: float) -> "Worker":
        torch.manual_seed(1)
        model = MODELS[run]()
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        session = gradwire.join(model, optimizer=optimizer, master=master, run=run, workers=WORKERS)
        return cls(model, optimizer, session)

    def train(self, steps: int) -> None:
        """Fit the model to zero."""
        inputs = torch.eye(next(self.model.parameters()).shape[1])
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.model(inputs).square().sum().backward()
            self.optimizer.step()
            self.session.step()


def samples(http: str) -> dict[str, float]:
    """Return what ``/metrics`` has, by name and labels as they are written."""
    with urlopen(f"http://{http}/metrics", timeout=PROCESS) as response:
        lines = response.read().decode().splitlines()
    pairs = [line.rpartition(" ") for line in lines if not line.startswith("#")]
    return {name: float(value) for name, _, value in pairs}


def end_run(http: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gradwire", "operate", "end-run", "--http", http]
    return completed([*command, *options])


def test_each_of_three_runs_goes_its_own_way(tmp_path: Path) -> None:
    with (
        MasterProcess("--checkpoint", str(tmp_path)) as master,
        ThreadPoolExecutor(WORKERS * len(MODELS)) as pool,
    ):
        http = master.announcement["http"]
        rates = {"finishes": 0.05, "is ended": 0.05, "diverges": 10.0}
        joining = {
            run: [pool.submit(Worker.join, run, master.address, rate) for _ in range(WORKERS)]
            for run, rate in rates.items()
        }
        workers = {run: [each.result() for each in of] for run, of in joining.items()}

        training = {run: [pool.submit(w.train, 200) for w in of] for run, of in workers.items()}
        errors = [each.exception() for each in training["diverges"]]
        for each in training["finishes"] + training["is ended"]:
            each.result()
        going = status_of(http)["runs"]
        unsaid = end_run(master.http)
        done = end_run(master.http, "--run", "is ended")
        ended = [pool.submit(w.train, 10_000).exception() for w in workers["is ended"]]
        for worker in workers["finishes"]:
            worker.train(10)
        finish(*[worker.session for worker in workers["finishes"]])
        wait_for_process(lambda: names_of_finished(tmp_path), "the end of a run to be written")
        counted = samples(http)

        digests = {worker.session.digest() for worker in workers["finishes"]}
        updates = sum(w.session.stats.updates_delivered for w in workers["finishes"])
        for worker in workers["is ended"] + workers["diverges"]:
            worker.session.close()

    assert any(isinstance(error, gradwire.DivergedError) for error in errors), errors
    assert {run["name"]: run["parameters"] for run in going}.items() >= {
        "finishes": 5,
        "is ended": 14,
    }.items()
    assert (unsaid.returncode, unsaid.stderr) == (4, naming("'finishes'", "'is ended'", "--run"))
    assert (done.returncode, done.stdout) == (0, naming("'is ended'", "workers sent away: 2"))
    assert [str(error) for error in ended] == [naming("operator", "has ended the run")] * WORKERS
    assert len(digests) == 1
    assert counted['gradwire_updates_accepted_total{run="finishes"}'] == updates
    assert counted['gradwire_leaves_total{reason="expelled",run="is ended"}'] == WORKERS
    assert counted['gradwire_leaves_total{reason="expelled",run="finishes"}'] == 0
    assert counted['gradwire_runs_finished_total{run="finishes"}'] == 1
    assert counted["gradwire_runs_failed_total"] == 0
    over = [name for name in names_in(tmp_path) if name.endswith("-over.safetensors")]
    assert {name.rsplit("-", 2)[0] for name in over} == {"finishes", "is ended"}


def names_of_finished(folder: Path) -> list[str]:
    return [name for name in names_in(folder) if name.startswith("finishes-") and "-over" in name]
