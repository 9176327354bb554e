"""A master that listens with several processes, as seen from the first one."""

import asyncio
import os
import sys
from contextlib import closing

import pytest

from gradwire_protocol import Connection, Event, UsageError
from gradwire_server.config import MasterConfig
from gradwire_server.daemon.listening import Listening
from gradwire_server.shards import steering
from gradwire_udp import open_listener, open_socket
from support.wording import naming

TWO = MasterConfig(processes=2)
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="only Linux can steer packets")


class Nobody:
    """An application that nobody tells anything."""

    def handle_event(self, connection: Connection, event: Event, now: float) -> None:
        raise NotImplementedError

    def handle_timer(self, now: float) -> None:
        raise NotImplementedError

    def next_timer(self) -> float | None:
        return None


def test_over_tcp_alone_there_is_one_process() -> None:
    with pytest.raises(UsageError, match=naming("processes", 2, "TCP", 1)):
        Listening(TWO, "tcp")


@linux_only
async def test_it_starts_counts_and_ends_its_processes() -> None:
    listening = Listening(TWO, "auto")
    with closing(listening.open("127.0.0.1:0", Nobody(), asyncio.get_running_loop())):
        await listening.start()
        started = listening.connections_by_process
        await listening.refresh()

        assert list(started.values()) == [0, 0]
        assert next(iter(started)) == os.getpid()
        assert listening.figures.counters.connections_opened == 0
        listening.accept_no_more()


@linux_only
async def test_where_packets_cannot_be_steered_nothing_stays_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(steering, "SO_ATTACH_REUSEPORT_CBPF", 9_999)
    with open_socket(("127.0.0.1", 0)) as free:
        address = free.getsockname()

    with pytest.raises(UsageError, match=naming("processes", 2, "[Errno 92]")):
        Listening(TWO, "auto").open(f"127.0.0.1:{address[1]}", Nobody(), asyncio.get_running_loop())

    open_socket(address).close()
    open_listener(address).close()


async def test_one_process_needs_no_others() -> None:
    listening = Listening(MasterConfig(), "udp")
    with closing(listening.open("127.0.0.1:0", Nobody(), asyncio.get_running_loop())):
        figures = listening.figures
        await listening.start()
        await listening.refresh()

        assert listening.figures is figures
        assert listening.connections_by_process == {os.getpid(): 0}
