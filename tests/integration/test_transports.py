"""Real processes over UDP and TCP, and TCP connections that break."""

from contextlib import ExitStack

import pytest

from support.driven_worker import DrivenWorker, ask_all, finish
from support.health import metrics, run_status
from support.local_master import MasterProcess
from support.tcp_proxy import TcpProxy
from support.waiting import SILENCE, wait_for_process


def joined(stack: ExitStack, address: str, **settings: object) -> DrivenWorker:
    """Start a worker and let it join."""
    worker = stack.enter_context(DrivenWorker(address, settings=settings))
    answer = worker.ask("join")
    assert "rank" in answer, answer
    return worker


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
