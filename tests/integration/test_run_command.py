"""``gradwire run``: workers start, their output is prefixed, signals reach them, failures count."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import pytest

from gradwire.cli.app import EXIT_REFUSED, main
from gradwire.cli.launch.processes import Child
from gradwire.cli.run import Launcher
from gradwire_protocol.crypto.keys import SECRET_BYTES, RunKey
from gradwire_udp.files.keys import write_key
from support.processes import Running, children_of, completed, has_ended, python
from support.terminals import Terminal
from support.tiers import variants
from support.waiting import PROCESS, until, wait_for_process

NO_MASTER = ("--master", "127.0.0.1:1")
"""Nothing is dialled by programs that know nothing of gradwire."""


class Done(NamedTuple):
    """How it ended, and what it has written."""

    returncode: int
    stdout: str
    stderr: str


class Run(Protocol):
    def __call__(
        self,
        *command: str,
        workers: int = 2,
        options: Sequence[str] = (),
        environ: Mapping[str, str] = MappingProxyType({}),
    ) -> Done:
        """Run it to its end, in this process."""


@pytest.fixture
def gradwire_run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    def run(
        *command: str,
        workers: int = 2,
        options: Sequence[str] = (),
        environ: Mapping[str, str] = MappingProxyType({}),
    ) -> Done:
        with monkeypatch.context() as patch:
            for name, value in environ.items():
                patch.setenv(name, value)
            status = main(["run", "-n", str(workers), *options, "--", *command])
        return Done(status, *capfd.readouterr())

    return run


def launch(
    *command: str, workers: int = 2, prefix: Sequence[str] = (), options: Sequence[str] = NO_MASTER
) -> Running:
    """Start it, in a process of its own."""
    launcher = [*prefix, sys.executable, "-m", "gradwire", "run", "-n", str(workers)]
    return Running([*launcher, *options, "--", *command], stderr=subprocess.PIPE)


LOGS = """
import pathlib, sys, time, numpy as np, gradwire
target = np.zeros(10, np.float32)
with gradwire.join(target, workers=2, threshold=0.5) as session:
    step = 0
    while not pathlib.Path(sys.argv[1]).exists():
        target[0] += 1
        session.log(loss=1.5)
        session.step()
        step += 1
        if step % 10 == 0:
            print("worker", session.rank, "at step", step, flush=True)
        time.sleep(0.02)
"""
"""A worker that logs a loss until there is a file."""


def test_a_line_at_the_foot_of_a_terminal_says_how_far_the_workers_are(tmp_path: Path) -> None:
    end = tmp_path / "end"
    command = [sys.executable, "-m", "gradwire", "run", "--", *python(LOGS, str(end))]
    with Terminal(command, tmp_path) as terminal:
        terminal.wait_for("default: workers 2")
        terminal.wait_for("loss 1.5")
        terminal.wait_for("at step")
        end.touch()
        assert terminal.wait() == 0
        lines = terminal.lines

    assert not any("default: workers" in line for line in lines), "it is gone in the end"
    steps = [line for line in lines if "at step" in line]
    assert steps
    assert all(re.fullmatch(r"\[[01]\] worker [01] at step \d+", line) for line in steps)


def test_whoever_started_a_run_can_give_its_master_orders() -> None:
    code = """
import numpy as np, gradwire
with gradwire.join(np.zeros(10, np.float32)) as session:
    print("trains", flush=True)
    while session.stopping is None: session.step()
"""
    with launch(*python(code), options=()) as launcher:
        launcher.read_line("a worker to train")
        said = ""
        while "token in" not in said:
            said += launcher.read_line("the token", launcher.stderr)
        [http], [file] = re.findall(r"http://\S+", said), re.findall(r"token in (\S+)", said)
        token_file = Path(file)
        order = [sys.executable, "-m", "gradwire", "operate", "stop-training", "--http", http]

        refused, taken = completed(order), completed([*order, "--token-file", str(token_file)])
        launcher.communicate()

    assert refused.returncode == EXIT_REFUSED
    assert taken.returncode == launcher.returncode == 0, taken.stderr
    assert not token_file.exists()


HAS_KEYS = """
import os, pathlib, numpy as np, gradwire
path = pathlib.Path(os.environ["GRADWIRE_KEY_FILE"])
print(os.environ["RANK"], path, flush=True)
target = np.zeros(10, np.float32)
with gradwire.join(target) as session:
    session.wait()
    if session.rank == 0:
        try:
            del os.environ["GRADWIRE_KEY_FILE"]
            gradwire.join(target.copy(), connect_timeout_seconds=0.5)
        except gradwire.UnreachableError as error:
            print("without:", error, flush=True)
"""
"""A worker that tells where its key is, and tries to get in without one."""


def test_workers_find_their_place_in_the_environment(gradwire_run: Run) -> None:
    names = [
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
        *("OMP_NUM_THREADS", "MASTER_ADDR", "MASTER_PORT"),
    ]
    code = f"import os, json; print(json.dumps({{n: os.environ.get(n) for n in {names!r}}}))"

    done = gradwire_run(*python(code), workers=3, environ={"MASTER_ADDR": "localhost"})

    assert done.returncode == 0, done.stderr
    found = {line[:4]: json.loads(line[4:]) for line in done.stdout.splitlines()}
    [port] = {place.pop("MASTER_PORT") for place in found.values()}
    assert int(port) > 0
    assert found == {
        f"[{rank}] ": {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "3",
            "LOCAL_WORLD_SIZE": "3",
            "OMP_NUM_THREADS": str(max((os.cpu_count() or 1) // 3, 1)),
            "MASTER_ADDR": "localhost",  # what is set stays
        }
        for rank in range(3)
    }


def test_a_process_group_meets_beside_gradwire(gradwire_run: Run) -> None:
    code = """
import numpy as np, torch, torch.distributed as dist, gradwire
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
with gradwire.join(np.zeros(10, np.float32)) as session:
    session.wait()
print("total", total.item(), flush=True)
dist.destroy_process_group()
"""

    done = gradwire_run(*python(code), environ={"GLOO_SOCKET_IFNAME": "lo"})

    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] total 3.0", "[1] total 3.0"]


@pytest.mark.deep("more of what a launcher can meet")
def test_what_ddp_wraps_keeps_its_own_gradients(gradwire_run: Run) -> None:
    code = """
import warnings, torch, torch.distributed as dist, gradwire
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.BatchNorm1d(1)))
layer, norm = model.module
inputs = torch.arange(4.0)[:, None] * (rank + 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    session = gradwire.join(model, optimizer=optimizer)
[warning] = [str(w.message) for w in caught if w.category is gradwire.GradwireWarning]
with session:
    session.wait()
    for _ in range(3):
        with session.paused():
            optimizer.zero_grad()
            norm.running_mean.fill_(rank)
            model(inputs)[:, 0].mul(torch.arange(4.0)).sum().backward()
            assert torch.allclose(norm.running_mean, 0.9 * rank + 0.1 * layer(inputs).mean())
            through_ddp = [p.grad.clone() for p in layer.parameters()]
            optimizer.zero_grad()
            norm(layer(inputs))[:, 0].mul(torch.arange(4.0)).sum().backward()
            assert all(map(torch.equal, through_ddp, [p.grad for p in layer.parameters()]))
        optimizer.step()
        session.step()
print(warning.split(":")[0], flush=True)
dist.destroy_process_group()
"""

    done = gradwire_run(*python(code), environ={"GLOO_SOCKET_IFNAME": "lo"})

    assert done.returncode == 0, done.stderr
    said = "the model is wrapped in DistributedDataParallel"
    assert sorted(done.stdout.splitlines()) == [f"[0] {said}", f"[1] {said}"]


def test_master_and_workers_get_keys_that_are_gone_in_the_end(gradwire_run: Run) -> None:
    done = gradwire_run(*python(HAS_KEYS))

    assert done.returncode == 0, done.stderr
    told = dict(line.split(" ")[1:3] for line in done.stdout.splitlines() if "/" in line[:40])
    paths = {rank: Path(text) for rank, text in told.items() if rank.isdecimal()}
    assert {rank: path.name for rank, path in paths.items()} == {
        "0": "rank-0.key",
        "1": "rank-1.key",
    }
    assert not any(path.parent.exists() for path in paths.values())
    assert "without: no master answers" in done.stdout


@pytest.mark.deep("more of what a launcher can meet")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "key file {} holds the key of worker 'gpu7'"),
        (["--master", "127.0.0.1:9"], "{} is the key of one worker, and these are 2: "),
    ],
    ids=["no key of a run", "one key for several workers"],
)
def test_a_worker_key_starts_no_run_and_is_not_given_to_several(
    gradwire_run: Run, tmp_path: Path, options: list[str], said: str
) -> None:
    path = tmp_path / "gpu7.key"
    write_key(path, RunKey(bytes(SECRET_BYTES)).worker_key("gpu7").format())

    done = gradwire_run("true", options=[*options, "--key-file", str(path)])

    assert done.returncode == 2
    assert done.stderr.startswith(f"gradwire: {said.format(path)}")


@pytest.mark.deep("more of what a launcher can meet")
def test_with_a_master_that_runs_already_the_key_goes_to_the_workers(
    gradwire_run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "gpu7.key"
    code = "import os; print(os.environ.get('GRADWIRE_KEY_FILE'))"
    options = ["--master", "127.0.0.1:1"]

    with_key = gradwire_run(*python(code), workers=1, options=[*options, "--key-file", str(path)])
    without = gradwire_run(*python(code), workers=1, options=options)

    assert (with_key.stdout, without.stdout) == (f"[0] {path}\n", "[0] None\n")


def test_the_first_failure_ends_the_others_and_is_the_exit_status(gradwire_run: Run) -> None:
    code = """
import os, sys, threading
if os.environ["LOCAL_RANK"] == "1":
    sys.exit(7)
threading.Event().wait()
"""
    done = gradwire_run(*python(code), workers=3, options=NO_MASTER)

    assert done.returncode == 7
    assert "rank 1 ended with status 7" in done.stderr


@pytest.mark.parametrize("number", variants(signal.SIGINT, signal.SIGTERM))
def test_a_signal_is_passed_on_to_the_workers(number: int) -> None:
    code = f"""
import signal, sys, threading
stop = threading.Event()
signal.signal({number}, lambda *_: stop.set())
print("ready", flush=True)
while not stop.wait(0.05):
    pass
print("stopped", flush=True)
"""
    with launch(*python(code)) as launcher:
        ready = sorted(launcher.read_line("a worker to be ready") for _ in range(2))

        launcher.send_signal(number)
        rest, _ = launcher.communicate()

    assert ready == ["[0] ready\n", "[1] ready\n"]
    assert sorted(rest.splitlines()) == ["[0] stopped", "[1] stopped"]
    assert launcher.returncode == 0


def test_a_second_signal_kills_workers_that_do_not_end() -> None:
    code = "import signal; signal.signal(2, signal.SIG_IGN); print('up', flush=True)\n"
    with launch(*python(code + "while True: signal.pause()")) as launcher:
        for _ in range(2):
            launcher.read_line("a worker")

        launcher.send_signal(signal.SIGINT)
        while "SIGINT is passed on" not in launcher.read_line("the signal", launcher.stderr):
            pass
        launcher.send_signal(signal.SIGINT)
        launcher.communicate()

    assert launcher.returncode == 128 + signal.SIGKILL


@pytest.mark.deep("more of what a launcher can meet")
def test_a_signal_that_is_ignored_from_outside_stays_ignored() -> None:
    """As under nohup, which lets a terminal be closed."""
    code = 'import threading; print("ready", flush=True); threading.Event().wait(1)'
    deaf = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh"]
    with launch(*python(code), workers=1, prefix=deaf) as launcher:
        launcher.read_line("the worker to be ready")

        launcher.send_signal(signal.SIGHUP)
        launcher.communicate()

    assert launcher.returncode == 0


FAILS_ONCE = """
import os, pathlib, sys, threading
here = pathlib.Path(sys.argv[1])
if os.environ["LOCAL_RANK"] == "1":
    if not (here / "failed").exists():
        (here / "failed").touch()
        os.kill(os.getpid(), 9)
    (here / "restarted").touch()
while not (here / sys.argv[2]).exists():
    threading.Event().wait(0.01)
print("done", flush=True)
"""


@pytest.mark.parametrize(
    ("what", "waits_for", "done", "said"),
    [
        ("continue", "failed", ["[0] done"], "rank 1 was killed by SIGKILL"),
        ("restart", "restarted", ["[0] done", "[1] done"], "it is started again"),
    ],
)
def test_the_user_says_what_a_failure_of_a_worker_does(
    gradwire_run: Run, tmp_path: Path, what: str, waits_for: str, done: list[str], said: str
) -> None:
    options = [*NO_MASTER, "--on-failure", what]

    ended = gradwire_run(*python(FAILS_ONCE, str(tmp_path), waits_for), options=options)

    assert ended.returncode == 0
    assert sorted(ended.stdout.splitlines()) == done
    assert said in ended.stderr


def test_a_worker_that_fails_when_another_one_is_done_fails_nothing(
    gradwire_run: Run, tmp_path: Path
) -> None:
    code = """
import os, pathlib, sys, threading
first = pathlib.Path(sys.argv[1])
if os.environ["LOCAL_RANK"] == "0":
    first.with_suffix(".new").write_text(str(os.getpid()))
    first.with_suffix(".new").rename(first)
    sys.exit()
while not first.exists() or pathlib.Path("/proc", first.read_text()).exists():
    threading.Event().wait(0.01)
sys.exit(7)
"""
    options = [*NO_MASTER, "--on-failure", "restart"]

    ended = gradwire_run(*python(code, str(tmp_path / "first")), options=options)

    assert ended.returncode == 0
    assert "rank 1 ended with status 7" in ended.stderr


@pytest.mark.parametrize(("what", "starts"), [("continue", 2), ("restart", 3)])
def test_where_all_fail_that_is_the_exit_status(gradwire_run: Run, what: str, starts: int) -> None:
    workers = {"continue": 2, "restart": 1}[what]
    code = "import sys; print('up', flush=True); sys.exit(7)"

    options = [*NO_MASTER, "--on-failure", what]
    ended = gradwire_run(*python(code), workers=workers, options=options)

    assert ended.returncode == 7
    assert len(ended.stdout.splitlines()) == starts


TRAINS_UNTIL_IT_IS_BACK = """
import sys, threading, numpy as np, gradwire
target = np.zeros(100, np.float32)
with gradwire.join(target, threshold=0.01) as session:
    session.wait()
    print("trains", flush=True)
    while not session.stats.reconnections:
        target += 0.001
        session.step()
        threading.Event().wait(0.01)
print("digest", session.digest(), flush=True)
"""


def master_of(launcher: Running) -> int:
    """Return the process id of the master that a launcher has started."""
    [pid] = [
        pid
        for pid in children_of(launcher.pid)
        if b"run_module" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    return pid


def test_a_master_that_is_killed_is_started_again_and_the_run_goes_on() -> None:
    with launch(*python(TRAINS_UNTIL_IT_IS_BACK), options=()) as launcher:
        for _ in range(2):
            assert launcher.read_line("a worker to train").endswith("trains\n")
        killed = master_of(launcher)
        os.kill(killed, signal.SIGKILL)
        out, err = launcher.communicate()

    assert launcher.returncode == 0, err
    first, second = [line.partition("digest ")[2] for line in out.splitlines()]
    assert first == second
    assert err.count("gradwire run: the master was killed by SIGKILL") == 1
    [began, back] = [line.rpartition(" ")[2] for line in err.splitlines()
                     if "gradwire run: master at" in line.replace(", ", " ")
                     or "the master is back at" in line]  # fmt: skip
    assert back in err.partition(began)[0]
    # As quick as it was started again, workers find nothing at its port, or another master.
    assert "nothing listens at its port any more" in err or "it was restarted" in err
    assert "nothing heard for" not in err


def test_a_master_that_dies_three_times_in_a_minute_ends_the_run() -> None:
    code = "import threading; print('up', flush=True); threading.Event().wait()"
    with launch(*python(code), workers=1, options=()) as launcher:
        launcher.read_line("the worker")
        for _ in range(3):
            os.kill(master_of(launcher), signal.SIGKILL)
            said = ""
            while not ("is back at" in said or "third time" in said):
                said = launcher.read_line("the launcher", launcher.stderr)
                assert said
        launcher.communicate()

    assert launcher.returncode == 128 + signal.SIGKILL
    assert "for the third time within a minute; its last words: it has said nothing" in said


@pytest.mark.deep("more of what a launcher can meet")
def test_a_master_that_was_told_to_end_is_not_started_again() -> None:
    code = """
import gradwire, numpy as np
session = gradwire.join(np.zeros(10, np.float32))
print("up", flush=True)
try:
    while True: session.step()
except gradwire.ConnectionLostError as error:
    print("lost", flush=True)
"""
    with launch(*python(code), workers=1, options=()) as launcher:
        launcher.read_line("the worker")
        os.kill(master_of(launcher), signal.SIGTERM)
        out, err = launcher.communicate()

    assert (launcher.returncode, out) == (0, "[0] lost\n"), err
    assert "the master has ended, as it was told to" in err


def test_a_master_that_cannot_start_ends_it_with_its_status_and_words(gradwire_run: Run) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{other.getsockname()[1]}"
        done = gradwire_run("true", options=["--listen", address])

    assert done.returncode == 3
    assert "[master] gradwire master: " in done.stderr
    ended = done.stderr.partition("gradwire: the master ended with status 3 at once")[2]
    assert address in ended


def test_it_ends_soon_after_a_worker_that_said_no_goodbye_and_left_a_helper_behind() -> None:
    code = """
import os, subprocess, numpy as np, gradwire
session = gradwire.join(np.zeros(10, np.float32))
session.step()
subprocess.Popen(["sleep", "100000"])
print("gone", flush=True)
os._exit(0)
"""
    with launch(*python(code), workers=1, options=()) as launcher:
        assert launcher.read_line("the worker to be gone") == "[0] gone\n"

        _, said = launcher.communicate()

    assert launcher.returncode == 0
    assert "stopping without waiting any longer for" in said


def test_it_ends_with_its_workers_when_nobody_reads_on() -> None:
    code = "import itertools\nfor i in itertools.count(): print(i)"
    with launch(*python(code)) as launcher:
        assert launcher.stdout is not None
        assert launcher.stderr is not None
        launcher.read_line("the first line")
        workers = children_of(launcher.pid)
        launcher.stdout.close()

        messages = launcher.stderr.read()
        launcher.wait()

    assert launcher.returncode == 128 + signal.SIGPIPE
    assert "Traceback" not in messages
    assert "BrokenPipe" not in messages
    assert len(workers) > 1
    assert [pid for pid in workers if not has_ended(pid)] == []


@pytest.mark.deep("more of what a launcher can meet")
def test_what_the_encoding_of_the_output_does_not_have_is_shown_by_its_number() -> None:
    code = "import sys; sys.stdout.buffer.write('caf\u00e9 \u2588\\n'.encode())"
    with launch(*python(code), workers=1, prefix=["env", "PYTHONIOENCODING=ascii"]) as launcher:
        shown, said = launcher.communicate()

    assert launcher.returncode == 0, said
    assert shown == "[0] caf\\xe9 \\u2588\n"


@pytest.mark.deep("more of what a launcher can meet")
def test_a_signal_while_the_master_starts_ends_both() -> None:
    with launch("true", workers=1, options=()) as launcher:
        wait_for_process(lambda: children_of(launcher.pid), "the master's process")
        master = children_of(launcher.pid)

        launcher.send_signal(signal.SIGTERM)
        launcher.communicate()

    assert launcher.returncode == 128 + signal.SIGTERM
    assert [pid for pid in master if not has_ended(pid)] == []


def test_a_launcher_that_is_killed_takes_its_master_with_it() -> None:
    code = """
import os, threading
launcher = os.getppid()
print("up", flush=True)
while os.getppid() == launcher:
    threading.Event().wait(0.05)
"""
    with launch(*python(code), workers=1, options=()) as launcher:
        assert launcher.read_line("the worker to be up") == "[0] up\n"
        children = children_of(launcher.pid)

        launcher.kill()
        launcher.communicate()

    assert len(children) == 2
    wait_for_process(lambda: all(map(has_ended, children)), "master and worker to end")


async def test_a_signal_that_comes_while_a_worker_is_started_again_reaches_that_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = list[list[str]]()
    start = Child.start

    async def start_late(command: Sequence[str], *others: Any) -> Child:
        started.append(list(command))
        if len(started) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            await until(lambda: launcher._signals, "the signal")
            command = python("import signal; signal.pause()")
        return await start(command, *others)

    monkeypatch.setattr(Child, "start", start_late)
    launcher = Launcher(python("import sys; sys.exit(7)"), 1, on_failure="restart")
    work = launcher.run("127.0.0.1:1", [None])

    assert await launcher.supervise(work) == 128 + signal.SIGTERM


async def test_a_worker_that_saves_after_a_signal_is_not_stopped_when_another_one_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code = """
import os, pathlib, signal, sys, threading
here, rank = pathlib.Path(sys.argv[1]), os.environ["LOCAL_RANK"]
saves = lambda *_: None
signal.signal(signal.SIGINT, saves if rank == "1" else signal.SIG_DFL)
(here / rank).touch()
while not (here / "saved").exists():
    threading.Event().wait(0.01)
"""
    sent = list[int]()
    send_signal = Child.send_signal

    def note_signal(child: Child, number: int) -> None:
        if not child.over.done():
            sent.append(number)
        send_signal(child, number)

    monkeypatch.setattr(Child, "send_signal", note_signal)
    launcher = Launcher(python(code, str(tmp_path)), 2)
    supervising = asyncio.create_task(launcher.supervise(launcher.run("127.0.0.1:1", [None, None])))
    await until(lambda: len(list(tmp_path.iterdir())) == 2, "two workers", seconds=PROCESS)

    os.kill(os.getpid(), signal.SIGINT)
    await until(lambda: launcher._status, "the first one to end", seconds=PROCESS)
    (tmp_path / "saved").touch()

    assert await supervising == 128 + signal.SIGINT
    assert signal.SIGTERM not in sent
