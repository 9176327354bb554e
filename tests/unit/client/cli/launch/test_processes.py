"""Child processes: what they print, how they end, and what they leave behind."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gradwire.cli.launch import processes
from gradwire.cli.launch.processes import Child
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
        environ={"PYTHONUTF8": "1"},
        on_stdout=on_stdout,
        on_stderr=on_stderr,
    )


async def test_both_outputs_come_line_by_line_and_the_exit_status_last() -> None:
    out: list[str] = []
    err: list[str] = []
    code = "import sys; print('a\\r\\n\\u2588'); sys.stderr.write('b\\nc'); sys.exit(3)"

    child = await start(code, on_stdout=out.append, on_stderr=err.append)

    assert await child.wait() == 3
    assert (out, err) == (["a", "\u2588"], ["b", "c"])
    assert not child.is_running
    assert await child.stop() == 3


async def test_a_program_that_does_not_exist_leaves_no_pipe_open() -> None:
    def pipes() -> int:
        links = (fd.readlink() for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink())
        return sum(link.name.startswith("pipe:") for link in links)

    before = pipes()

    with pytest.raises(FileNotFoundError):
        await Child.start(["no-such-program"], environ={}, on_stdout=print, on_stderr=print)

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


async def test_stop_asks_first_and_insists_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "STOP_SECONDS_MAX", BRIEF)
    out: list[str] = []
    child = await start(NEVER_ENDS, on_stdout=out.append)
    await until(lambda: out == ["up"], "the process to ignore SIGTERM")

    assert await child.stop() == 128 + signal.SIGKILL


async def test_output_that_nobody_can_show_is_an_error_at_once_and_blocks_no_one() -> None:
    shown: list[str] = []

    def show(line: str) -> None:
        shown.append(line)
        raise BrokenPipeError("nobody reads on")

    child = await start("for _ in range(20_000): print('x' * 100)", on_stdout=show)

    with pytest.raises(BrokenPipeError, match="nobody reads on"):
        await child.wait()
    await until(lambda: not child.is_running, "the process to write all it has")
    assert await child.stop() == 0
    assert len(shown) == 1


async def test_a_child_that_nobody_waits_for_is_killed_with_its_event_loop() -> None:
    pids: list[int] = []

    async def start_and_forget() -> None:
        out: list[str] = []
        await start(f"import os; print(os.getpid())\n{NEVER_ENDS}", on_stdout=out.append)
        await until(lambda: "up" in out, "the process to start")
        pids.append(int(out[0]))

    await asyncio.to_thread(asyncio.run, start_and_forget())

    await until(lambda: has_ended(pids[0]), "the process to be killed")
