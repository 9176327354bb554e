"""``gradwire top`` as a process: in a terminal, in a pipe and in a script."""

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gradwire
from gradwire.cli.app import EXIT_REFUSED, EXIT_UNREACHABLE, EXIT_USAGE
from gradwire.cli.master_http import MasterHttp
from gradwire.cli.top.documents import read
from gradwire.cli.top.screen import runs_in
from support.http_documents import documents, pages
from support.http_stub import answering
from support.local_master import MasterProcess
from support.processes import Running, completed
from support.terminals import Terminal
from support.waiting import wait_until
from support.wording import naming

FOUND = documents("bert")
BACK = documents("gpt")


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "gradwire", "top", "--every", "0.1", *options]


@pytest.mark.parametrize("end", ["q", signal.SIGINT, signal.SIGTERM])
def test_a_terminal_shows_the_master_also_when_it_was_away_and_whatever_ends_it_is_status_0(
    tmp_path: Path, end: str | signal.Signals
) -> None:
    with answering(pages(FOUND)) as stub:
        terminal = Terminal(command("--http", stub.address), tmp_path, columns=80, rows=24)
        with terminal:
            terminal.wait_for("rank 19 has joined")
            assert any(line.startswith("bert") and "2.5" in line for line in terminal.lines)
            stub.close()
            terminal.wait_for("asking again")
            with answering(pages(BACK), stub.port):
                terminal.wait_for("gpt")
                if isinstance(end, str):
                    terminal.type(end)
                else:
                    terminal.process.send_signal(end)
                status = terminal.wait()

    assert status == 0
    assert not any("asking again" in line for line in terminal.lines)
    assert not any("Traceback" in line for line in terminal.lines)


def test_a_pipe_has_a_line_for_each_run_and_stderr_says_when_the_master_is_away() -> None:
    with (
        answering(pages(FOUND)) as stub,
        Running(command("--http", stub.address), stderr=subprocess.PIPE) as top,
    ):
        assert top.read_line("a run") == (
            "bert: workers 2, step 1,001, loss 2.5, updates/s 25, bytes/s 12.5 KB\n"
        )
        stub.close()
        assert stub.address in top.read_line("that it is away", top.stderr)
        with answering(pages(BACK), stub.port):
            line = ""
            while not line.startswith("gpt"):
                line = top.read_line("another run")
            top.send_signal(signal.SIGINT)
            assert top.wait() == 0


def test_what_a_real_master_says_is_shown() -> None:
    target = np.zeros(5, np.float32)
    with MasterProcess() as master:
        http = MasterHttp(master.announcement["http"])
        with gradwire.join(target, master=master.address, run="bert", threshold=0.5) as session:
            for step in range(3):
                target[0] += 1
                session.log(loss=float(3 - step))
                session.step()

            def is_whole() -> bool:
                [run] = runs_in(read(http, None))
                return bool(run["curve"] == [3.0, 2.0, 1.0])

            wait_until(is_whole, "the curve of the loss")
            shown = completed(command("--http", http.url, "--once")).stdout
            found = read(http, None)
        wait_until(lambda: runs_in(read(http, None)) == [], "the end of the run")
        later = completed(command("--http", http.url, "--once")).stdout
        [over] = runs_in(read(http, "bert"))

    [run] = runs_in(found)
    assert (run["loss"], run["step"]) == (1.0, 2.0)
    assert {event["kind"] for event in run["events"]} >= {"began", "joined"}
    [row] = [line for line in shown.splitlines() if line.startswith("bert")]
    assert {"bert", "sharing", "█▅▁"} <= set(row.split())
    [row] = [line for line in later.splitlines() if line.startswith("bert")]
    assert row.split()[:3] == ["bert", "1", "finished"]
    assert (over["loss"], over["curve"]) == (1.0, [3.0, 2.0, 1.0])


def test_a_script_is_given_what_the_master_says() -> None:
    with answering(pages(FOUND)) as stub:
        as_json = completed(command("--http", stub.address, "--once", "--json"))
        as_text = completed(command("--http", stub.address, "--once"))

    assert json.loads(as_json.stdout) == FOUND
    assert "host1" in as_text.stdout
    assert "\x1b" not in as_text.stdout


def test_whatever_stands_in_the_way_is_said_with_its_own_exit_status(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("no-token-of-this-master")
    token.chmod(0o600)
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unheard.getsockname()[1]}"
        nobody = completed(command("--http", address))
    with answering(lambda target: (401, {}, b"a wrong token")) as stub:
        refused = completed(command("--http", stub.address, "--token-file", str(token)))
    with answering(pages(FOUND)) as stub:
        unknown = completed(command("--http", stub.address, "--run", "gpt", "--once"))
    misused = completed(command("--json"))

    assert (nobody.returncode, nobody.stderr) == (EXIT_UNREACHABLE, naming(address))
    assert (refused.returncode, refused.stderr) == (EXIT_REFUSED, naming("--token-file"))
    assert (unknown.returncode, unknown.stderr) == (EXIT_REFUSED, naming("there is no such run"))
    assert (misused.returncode, misused.stderr) == (EXIT_USAGE, naming("--once"))
