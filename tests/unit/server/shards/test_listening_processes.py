"""A master that listens with several processes, as seen from the first one."""

import asyncio
import os
import sys
from contextlib import closing
from pathlib import Path

import pytest

from gradwire_protocol import UsageError
from gradwire_server.config import MasterConfig
from gradwire_server.daemon.listening import Listening
from gradwire_server.shards import steering
from support.shard_rig import Heard
from support.wording import naming

TWO = MasterConfig(processes=2)
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="only Linux can steer packets")


def open_sockets() -> set[str]:
    """Return the sockets that this process has open."""
    links = (each.readlink() for each in Path("/proc/self/fd").iterdir() if each.is_symlink())
    return {link.name for link in links if link.name.startswith("socket:")}


def test_over_tcp_alone_there_is_one_process() -> None:
    with pytest.raises(UsageError, match=naming("processes", 2, "TCP", 1)):
        Listening(TWO, "tcp")


@linux_only
async def test_it_starts_counts_and_ends_its_processes() -> None:
    listening = Listening(TWO, "auto")
    with closing(listening.open("127.0.0.1:0", Heard(), asyncio.get_running_loop())):
        await listening.start()
        started = listening.connections_by_process
        await listening.refresh()

        assert list(started.values()) == [0, 0]
        assert next(iter(started)) == os.getpid()
        assert listening.figures.counters.connections_opened == 0
        listening.stop_accepting()


@linux_only
async def test_where_packets_cannot_be_steered_nothing_stays_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(steering, "SO_ATTACH_REUSEPORT_CBPF", 9_999)
    loop, before = asyncio.get_running_loop(), open_sockets()

    with pytest.raises(UsageError, match=naming("processes", 2, "[Errno 92]")):
        Listening(TWO, "auto").open("127.0.0.1:0", Heard(), loop)

    assert open_sockets() == before


async def test_one_process_needs_no_others() -> None:
    listening = Listening(MasterConfig(), "udp")
    with closing(listening.open("127.0.0.1:0", Heard(), asyncio.get_running_loop())):
        figures = listening.figures
        await listening.start()
        await listening.refresh()

        assert listening.figures is figures
        assert listening.connections_by_process == {os.getpid(): 0}
