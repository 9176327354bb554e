"""What a process asks of its system: an end with its parent, and the memory it has freed."""

import platform
import signal
import subprocess
import sys

import pytest

from support.processes import Running, python

WAITS = """
import os, signal
from gradwire_udp.process import end_with_parent
end_with_parent(os.getppid(), signal.{name})
print("up", flush=True)
signal.pause()
"""

MESSAGES = """
import asyncio, os, resource
from gradwire_protocol import ConnectionConfig, Endpoint, ShapedMessage
from gradwire_udp import SocketCounters, UdpDriver, open_socket

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

loop = asyncio.new_event_loop()
endpoint = Endpoint(ConnectionConfig(), random_bytes=os.urandom)
driver = UdpDriver(open_socket(("127.0.0.1", 0)), endpoint, None, loop, SocketCounters())
for size in (200_000, 2**20, 2**22):
    payload = bytes(size)
    for messages in (10, 100):
        before = faults()
        for number in range(messages):
            ShapedMessage.of(0, number, 1, payload, 1200).payload
    print((faults() - before) / messages)
driver.close()
loop.close()
"""
"""Program that makes messages and forgets them; it prints its page faults for each, by size."""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of such an end")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
def test_a_process_ends_with_its_parent(name: str) -> None:
    child = WAITS.format(name=name)
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}]).wait()"
    with Running(python(code)) as parent:
        assert parent.read_line("the child to be up") == "up\n"

        parent.send_signal(signal.SIGKILL)

        assert parent.read_line("the end of the pipe, which the child has, too") == ""


def test_a_process_does_not_begin_when_its_parent_has_ended_already() -> None:
    code = "from gradwire_udp.process import end_with_parent; import signal; "
    code += "end_with_parent(-1, signal.SIGTERM); print('went on')"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)

    assert done.returncode == 128 + signal.SIGTERM
    assert done.stdout == b""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have other ways")
def test_messages_use_memory_again() -> None:
    done = subprocess.run(python(MESSAGES), capture_output=True, check=True, text=True)

    assert max(map(float, done.stdout.split())) < 4.0


DESCRIPTORS = """
import resource
from gradwire_udp.process import allow_descriptors
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
for now in ({now}, most):
    resource.setrlimit(resource.RLIMIT_NOFILE, (now, most))
    allow_descriptors()
    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], most)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="has no such limit")
def test_as_many_descriptors_are_allowed_as_the_system_lets_it_have_and_never_fewer() -> None:
    done = subprocess.run(
        python(DESCRIPTORS.format(now=64)), check=True, capture_output=True, text=True
    )

    (raised, most), (kept, _) = (
        [int(n) for n in line.split()] for line in done.stdout.split("\n")[:2]
    )
    assert raised == min(most, 2**16)
    assert kept == most
