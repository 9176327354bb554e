"""Child processes: what they print, how they end, and what they leave behind."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gradwire.cli.launch import processes
from gradwire.cli.launch.processes import Child, Failures, how
from support.processes import has_ended
from support.waiting import BRIEF, POLL_SECONDS, PROCESS, until

NEVER_ENDS = "import os, signal; signal.pthread_sigmask(0, {15, 1}); os.write(1, b'up\\n')\n"
NEVER_ENDS += "while True: signal.pause()"
"""Program that a SIGTERM does not end. It writes a whole line: others write to the pipe, too."""

LEAVES_BEHIND = """
import os, subprocess, sys
command = [sys.executable, "-c", sys.argv[1], str(os.getpid())]
left = subprocess.Popen(command, start_new_session={new_session})
os.write(1, b"%d\\n" % left.pid)
"""
"""Program that starts another and ends; the other has its pipes, and knows its process id."""

WAITS_FOR_THAT = f"""
import os, sys, threading
while os.getppid() == int(sys.argv[1]):
    threading.Event().wait({POLL_SECONDS})
print("done")
"""


def left_behind(out: list[str]) -> int:
    """Return the process id among the lines of `LEAVES_BEHIND` and of what it has started."""
    return next(int(line) for line in out if line.isdigit())


async def start(
    code: str,
    *arguments: str,
    on_stdout: Callable[[str], None] = lambda line: None,
    on_stderr: Callable[[str], None] = lambda line: None,
) -> Child:
    """Start a Python program."""
    return await Child.start(
        [sys.executable, "-c", code, *arguments],
        os.environ | {"PYTHONUTF8": "1"},
        on_stdout,
        on_stderr,
    )


async def test_both_outputs_come_line_by_line_and_the_exit_status_last() -> None:
    out: list[str] = []
    err: list[str] = []
    code = "import sys; print('a\\r\\n\\u2588'); sys.stderr.write('b\\nc'); sys.exit(3)"

    child = await start(code, on_stdout=out.append, on_stderr=err.append)

    assert await child.wait() == 3
    assert (out, err) == (["a", "\u2588"], ["b", "c"])
    await child.stop()


async def test_a_program_that_does_not_exist_leaves_no_pipe_open() -> None:
    def pipes() -> int:
        links = (fd.readlink() for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink())
        return sum(link.name.startswith("pipe:") for link in links)

    before = pipes()

    with pytest.raises(FileNotFoundError):
        await Child.start(["no-such-program"], {}, print, print)

    await until(lambda: pipes() == before, "the pipes to be closed")


async def test_what_a_process_leaves_in_its_group_does_not_hold_its_end_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes, "LAST_WORDS_SECONDS_MAX", BRIEF)
    out: list[str] = []

    child = await start(LEAVES_BEHIND.format(new_session=False), NEVER_ENDS, on_stdout=out.append)

    assert await child.wait() == 0
    await until(lambda: has_ended(left_behind(out)), "what was left to be killed")


async def test_what_a_process_leaves_may_say_its_last_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes, "LAST_WORDS_SECONDS_MAX", PROCESS)
    out: list[str] = []

    child = await start(
        LEAVES_BEHIND.format(new_session=False), WAITS_FOR_THAT, on_stdout=out.append
    )

    assert await child.wait() == 0
    assert out[-1] == "done"


async def test_after_the_end_no_signal_goes_to_a_group_that_may_be_anothers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    child = await start("")
    await child.wait()
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "killpg", lambda *arguments: sent.append(arguments))

    child.send_signal(signal.SIGTERM)
    await child.stop()

    assert sent == []


async def test_after_sigterm_a_process_has_its_time_and_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes, "STOP_SECONDS_MAX", BRIEF)
    out: list[str] = []
    child = await start(NEVER_ENDS, on_stdout=out.append)
    await until(lambda: out == ["up"], "the process to ignore SIGTERM")

    child.send_signal(signal.SIGTERM)

    assert await child.wait() == 128 + signal.SIGKILL


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (1, "ended with status 1"),
        (128, "ended with status 128"),
        (128 + signal.SIGTERM, "was killed by SIGTERM"),
        (255, "ended with status 255"),
    ],
)
def test_a_status_is_a_number_or_the_signal_that_it_stands_for(status: int, said: str) -> None:
    assert how(status) == said


def test_what_the_system_kills_for_memory_says_where_to_look() -> None:
    assert how(128 + signal.SIGKILL).startswith("was killed by SIGKILL (")
    assert "dmesg" in how(128 + signal.SIGKILL)


@pytest.mark.parametrize(
    ("at", "too_many"), [((0.0, 1.0), False), ((0.0, 30.0, 60.0), True), ((0.0, 30.0, 61.0), False)]
)
def test_three_failures_within_a_minute_are_too_many(
    at: tuple[float, ...], too_many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "monotonic", iter(at).__next__)
    failures = Failures()

    said = [failures.are_too_many() for _ in at]

    assert said == [False] * (len(at) - 1) + [too_many]
