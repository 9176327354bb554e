"""Real processes where UDP does not lead to the master, and TCP connections that break."""

import socket
from contextlib import ExitStack

import pytest

from support.driven_worker import DrivenWorker, ask_all, finish
from support.health import metrics, run_status
from support.local_master import MasterProcess
from support.namespaces import Machine, can_have_machines, ip, two_machines
from support.tcp_proxy import TcpProxy
from support.waiting import SILENCE, wait_for_process


def joined(stack: ExitStack, address: str, *prefix: str, **settings: object) -> DrivenWorker:
    """Start a worker and let it join."""
    worker = stack.enter_context(DrivenWorker(address, *prefix, settings=settings))
    answer = worker.ask("join")
    assert "rank" in answer, answer
    return worker


def drop_udp(machine: Machine) -> None:
    """Let a machine have a firewall that drops all UDP without a word."""
    rule = ("-n", machine.namespace, "rule")
    # The table of its own addresses comes first otherwise, and lets everything in.
    ip(*rule, "add", "pref", "100", "lookup", "local")
    ip(*rule, "del", "pref", "0")
    ip(*rule, "add", "pref", "50", "ipproto", "udp", "blackhole")


@pytest.mark.deep("real processes between network namespaces")
@pytest.mark.skipif(not can_have_machines(), reason="needs the right to make namespaces")
def test_behind_a_firewall_that_drops_udp_a_worker_takes_tcp_by_itself() -> None:
    with ExitStack() as stack:
        one, other = stack.enter_context(two_machines())
        drop_udp(one)
        master = stack.enter_context(
            MasterProcess("--insecure", prefix=one.prefix, listen=f"{one.address}:40123")
        )

        worker = joined(
            stack, f"{one.address}:40123", *other.prefix, connect_timeout_seconds=SILENCE
        )
        answer = worker.ask("step", times=20)

        assert answer["transport"] == "tcp"
        assert answer["updates_sent"] > 0
        [end] = finish([worker])
        assert end["digest"]
        assert master.announcement["master"] == f"{one.address}:40123"


def test_workers_over_udp_and_tcp_end_equal() -> None:
    with ExitStack() as stack:
        master = stack.enter_context(MasterProcess())
        transports = ["udp", "tcp", "auto", "tcp"]
        workers = [joined(stack, master.address, transport=t) for t in transports]
        answers = ask_all(workers, "step", times=60)
        counted = metrics(master.announcement["http"])

        finish(workers)

        assert [answer["transport"] for answer in answers] == ["udp", "tcp", "udp", "tcp"]
        assert counted["gradwire_tcp_connections"] == 2
        assert counted["gradwire_tcp_connections_accepted_total"] == 2
        assert counted["gradwire_tcp_received_bytes_total"] > 0
        assert counted["gradwire_received_bytes_total"] > 0


def test_a_tcp_connection_that_is_cut_is_noticed_at_once_and_made_anew() -> None:
    """The master counts it as disconnected, and not as idle."""
    with ExitStack() as stack:
        master = stack.enter_context(MasterProcess())
        proxy = stack.enter_context(TcpProxy(master.address))
        cut = joined(stack, proxy.address, transport="tcp")
        stays = joined(stack, master.address, transport="tcp")
        cut.tell("flood")  # in the middle of an update, most likely
        stays.ask("step", times=10)

        http = master.announcement["http"]
        disconnected = 'gradwire_leaves_total{reason="disconnected"}'
        proxy.hold()  # else, on a busy machine, the worker is back before the master has noticed
        proxy.cut_from_target()
        wait_for_process(lambda: metrics(http)[disconnected] >= 1, "the master to notice")
        proxy.cut()
        wait_for_process(lambda: metrics(http)["gradwire_rejoins_total"] >= 1, "it to come back")
        cut.kill()
        wait_for_process(lambda: len(run_status(http)["workers"]) == 1, "its end to be noticed")
        [end] = finish([stays])

        assert end["workers"] == 1


@pytest.mark.deep("more of what TCP can meet")
def test_a_worker_that_was_cut_off_while_all_others_finished_and_left_is_told_so() -> None:
    """And does not go on alone, with parameters that nobody else has."""
    with ExitStack() as stack:
        master = stack.enter_context(MasterProcess("--idle-timeout-seconds", str(SILENCE)))
        http = master.announcement["http"]
        proxy = stack.enter_context(TcpProxy(master.address))
        quick = {"transport": "tcp", "idle_timeout_seconds": SILENCE}
        cut, stays = (joined(stack, a, **quick) for a in (proxy.address, master.address))
        for worker in (cut, stays):
            worker.ask("wait", workers=2)
            worker.ask("step", times=20)

        proxy.hold()
        cut.ask("step", times=5)
        wait_for_process(lambda: len(run_status(http)["workers"]) == 1, "its silence to be noticed")
        [end] = finish([stays])
        assert end["digest"]
        wait_for_process(lambda: run_status(http)["name"] is None, "the end of the run")
        proxy.go_on()
        answer = cut.ask("finish")

        assert answer["error"] == "RefusedError", answer
        assert "was finished by its other workers while nothing was heard" in answer["message"]
        assert metrics(http)["gradwire_runs_finished_total"] == 1


@pytest.mark.deep("more of what TCP can meet")
def test_a_web_browser_at_the_masters_port_changes_nothing() -> None:
    with ExitStack() as stack:
        master = stack.enter_context(MasterProcess())
        worker = joined(stack, master.address, transport="tcp")
        host, port = master.address.split(":")

        with socket.create_connection((host, int(port))) as browser:
            browser.sendall(b"GET / HTTP/1.1\r\nHost: master\r\n\r\n")
            assert browser.recv(100) == b""

        assert finish([worker])[0]["digest"]
        counted = metrics(master.announcement["http"])
        assert counted["gradwire_tcp_violations_total"] == 1
