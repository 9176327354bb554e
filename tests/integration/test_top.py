"""``gradwire top`` in a terminal, in a pipe and in a script, at a real master with two workers."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from gradwire.cli.app import EXIT_REFUSED
from gradwire_protocol.crypto.keys import SECRET_BYTES, RunKey
from gradwire_udp.files.keys import write_key
from support.local_master import MasterProcess
from support.processes import Running, python
from support.terminals import Terminal
from support.waiting import wait_until

pytestmark = pytest.mark.timeout(180)

TOKEN = "correct-horse-battery-staple"

WORKER = """
import itertools, time
import numpy as np, gradwire
target = np.zeros(100, np.float32)
with gradwire.join(target, run="bert", workers=2, threshold=0.5) as session:
    print("joined", flush=True)
    for step in itertools.count():
        target[0] += 1 - 2 * (step % 2)
        session.log(loss=1.5)
        session.step()
        time.sleep(0.1)
"""


@dataclass
class Place:
    """A master with two workers that train."""

    master: MasterProcess
    folder: Path
    run_key: Path
    workers: list[Running]

    @property
    def http(self) -> str:
        return str(self.master.announcement["http"])

    def asked(self, path: str) -> Any:
        request = Request(f"http://{self.http}{path}", headers={"Authorization": f"Bearer {TOKEN}"})
        with urlopen(request, timeout=10) as response:
            return json.loads(response.read())

    def top(self, *options: str) -> list[str]:
        """Return the command, with the place and the token of the page."""
        token = ("--http-token-file", str(self.folder / "http.token"))
        return command("--http", self.http, *token, *options)


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "gradwire", "top", *options]


def top(*options: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return ended(command(*options))


def ended(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("top")
    token = folder / "http.token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    key = folder / "run.key"
    run_key = RunKey(os.urandom(SECRET_BYTES))
    write_key(key, run_key.format())
    names = ("one", "two")
    for name in names:
        write_key(folder / f"{name}.key", run_key.worker_key(name).format())
    with ExitStack() as stack:
        log = stack.enter_context((folder / "master.log").open("w"))
        master = stack.enter_context(
            MasterProcess("--key-file", str(key), "--http-token-file", str(token), log=log)
        )
        workers = [
            stack.enter_context(
                Running(
                    python(WORKER),
                    env={
                        **os.environ,
                        "GRADWIRE_MASTER": master.address,
                        "GRADWIRE_KEY_FILE": f"{name}.key",
                    },
                    cwd=folder,
                )
            )
            for name in names
        ]
        for worker in workers:
            assert worker.read_line("a worker to join") == "joined\n"
        place = Place(master, folder, key, workers)
        wait_until(
            lambda: (
                {"loss", "gradwire/steps_per_second"}
                <= set(place.asked("/api/v1/runs/bert")["series"])
                and all(each["figures"] for each in place.asked("/api/v1/runs/bert")["workers"])
            ),
            "the workers' figures",
            seconds=60,
        )
        yield place


def shape(value: Any) -> Any:
    """Return a document without its numbers and texts, which differ from second to second."""
    if isinstance(value, dict):
        return {name: shape(each) for name, each in value.items()}
    return [shape(each) for each in value[:1]] if isinstance(value, list) else None


def test_one_picture_as_json_is_what_the_api_has(place: Place) -> None:
    done = ended(place.top("--once", "--json", "--run", "bert"))

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    path = "/api/v1/runs/bert"
    assert shape(found["overview"]) == shape(place.asked("/api/v1/overview"))
    assert list(found["runs"]) == ["bert"]
    assert shape(found["runs"]["bert"]["run"]) == shape(place.asked(path))
    known = {event["number"]: event["text"] for event in place.asked(f"{path}/events")["events"]}
    events = found["runs"]["bert"]["events"]["events"]
    assert {event["number"]: event["text"] for event in events}.items() <= known.items()
    curves = found["runs"]["bert"]["series"]["curves"]
    assert {(curve["name"], curve["rank"]) for curve in curves} == {
        ("loss", None), ("master/updates_per_second", None),
    }  # fmt: skip
    assert set(curves[0]["mean"]) == {1.5}


def test_one_picture_has_a_row_for_each_worker(place: Place) -> None:
    done = ended(place.top("--once"))

    assert done.returncode == 0, done.stderr
    rows = [
        line.split() for line in done.stdout.splitlines() if re.match(r" +\d+  (one|two) ", line)
    ]
    assert sorted((row[1], row[3]) for row in rows) == [("one", "live"), ("two", "live")]
    assert "\x1b" not in done.stdout
    assert "bert" in done.stdout
    assert "1.50" in done.stdout


def test_an_operator_needs_no_page(place: Place) -> None:
    options = ("--master", place.master.address, "--key-file", str(place.run_key), "--once")
    done = top(*options)
    as_json = top(*options, "--json")

    assert done.returncode == 0, done.stderr
    assert re.search(r"^ +\d+  one at .* live", done.stdout, re.MULTILINE)
    assert list(json.loads(as_json.stdout)["runs"]) == ["bert"]


def test_in_a_pipe_there_are_lines(place: Place) -> None:
    with Running(place.top(), stderr=subprocess.PIPE) as process:
        lines = [process.read_line("a line for the run") for _ in range(2)]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)

    assert all(re.match(r"bert: 2 workers, steps? .* steps/s, loss 1\.50", each) for each in lines)
    assert process.returncode == 128 + signal.SIGINT


def test_a_master_without_the_token_and_a_run_that_there_is_not_refuse(place: Place) -> None:
    without = top("--http", place.http, "--once")
    no_run = ended(place.top("--run", "resnet", "--once"))

    assert (without.returncode, no_run.returncode) == (EXIT_REFUSED, EXIT_REFUSED)
    assert "--http-token-file" in without.stderr
    assert "no run 'resnet' is in progress; runs: 'bert'" in no_run.stderr


def test_a_relay_says_that_it_is_none(place: Place) -> None:
    options = ("--key-file", str(place.run_key))
    with MasterProcess(*options, relay_of=place.master.address) as relay:
        done = top("--http", relay.announcement["http"], "--once")

    assert done.returncode == EXIT_REFUSED
    assert "a relay has none" in done.stderr


def test_a_killed_worker_shows_in_a_terminal_and_a_lost_master_too(place: Place) -> None:
    """The last one here: it ends what the others need."""
    with Terminal(place.top(), place.folder, columns=80, rows=24) as terminal:
        terminal.wait_for("one ")
        terminal.wait_for("two ")
        wait_until(lambda: "q quit" in terminal.screen[-1], "the last row", seconds=30)

        place.workers[0].send_signal(signal.SIGKILL)
        wait_until(
            lambda: any(re.match(r" +\d+  one .* silent ", row) for row in terminal.screen),
            "the killed worker to be called silent",
            seconds=20,
        )
        assert any(re.match(r" +\d+  two .* live ", row) for row in terminal.screen)

        place.master.signal(signal.SIGKILL)
        terminal.wait_for("asking again")
        assert any(re.match(r" +\d+  two .* live ", row) for row in terminal.screen)
        assert max(map(len, terminal.screen)) <= 80

        terminal.press("q")
        assert terminal.wait() == 0
