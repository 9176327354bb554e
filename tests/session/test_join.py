"""`gradwire.join` against a real master on loopback: who gets in, and who is told what."""

import logging
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from threading import Event
from typing import Any

import numpy as np
import pytest

import gradwire
from gradwire.session import join as join_module
from gradwire.settings.settings import Settings
from gradwire.target.adapters import parameters_of
from gradwire.threads.network import NetworkThread
from gradwire.worker.membership import Membership
from gradwire.worker.worker import Worker
from gradwire_codecs.arrays import Float32Array
from gradwire_protocol.messages.admission import Join
from gradwire_protocol.messages.fields import BLOCK_ELEMENTS
from gradwire_protocol.messages.link import Link, Message
from gradwire_protocol.messages.replicas import Snapshot
from gradwire_udp import resolve_all
from support.local_master import Answering, LocalMaster
from support.peer import join_request, welcome
from support.sessions import join
from support.waiting import JOB, SOON, wait_until
from support.wording import naming

QUANTUM = 2.0**-24


def target(*values: float) -> Float32Array:
    return np.array(values or [0.0] * 6, np.float32)


def refusal_naming(*named: str, attempt: Callable[[float], object]) -> None:
    """Assert why joining ends in vain, with as many seconds as it takes to get that far here."""
    for seconds in (SOON / 100, SOON / 10, SOON):
        with pytest.raises(gradwire.DeadlineError) as refused:
            attempt(seconds)
        if str(refused.value) == naming(*named):
            break
    assert str(refused.value) == naming(f"{seconds:g} s", *named)


# Getting in.


def test_the_first_worker_s_parameters_start_the_run_and_later_ones_get_them(
    master: LocalMaster,
) -> None:
    mine, theirs = target(0.5, -1.0, 2.0), target(7.0, 7.0, 7.0)

    first = join(master, mine)
    second = join(master, theirs)

    assert mine.tolist() == theirs.tolist() == [0.5, -1.0, 2.0]
    assert first.digest() == second.digest()
    assert (first.rank, second.rank) == (0, 1)
    assert (first.run, second.run) == ("default", "default")


def test_large_models_come_in_whole(master: LocalMaster) -> None:
    """More than the blocks that are under way at once."""
    mine = np.random.default_rng(1).normal(0, 0.1, 1_100_000).astype(np.float32)
    theirs = np.zeros_like(mine)

    first = join(master, mine)
    second = join(master, theirs)

    assert mine.tobytes() == theirs.tobytes()
    assert first.digest() == second.digest()


# The quantum.


def test_the_quantum_suits_the_first_worker_s_parameters_and_the_run_keeps_it(
    master: LocalMaster,
) -> None:
    first, second = join(master, target(0.0, -10.0)), join(master, target(0.0, 0.0))

    assert first.quantum == second.quantum == 2 * QUANTUM


def test_a_quantum_that_is_too_small_is_refused_and_the_next_one_that_is_offered_does(
    master: LocalMaster,
) -> None:
    mine = target(0.0, -10.0)
    named = ("array[1]", -10, f"quantum={QUANTUM}", 8, f"quantum={2 * QUANTUM}")

    with pytest.raises(gradwire.OutOfRangeError, match=naming(*named)):
        join(master, mine, quantum=QUANTUM)

    assert mine.tolist() == [0, -10]
    assert join(master, mine, quantum=2 * QUANTUM).quantum == 2 * QUANTUM


# Not getting in.


def test_workers_that_know_of_each_other_begin_together(master: LocalMaster) -> None:
    options: dict[str, Any] = {"master": master.address, "workers": 3}
    with ThreadPoolExecutor(3) as pool:
        joining = [pool.submit(gradwire.join, target(), **options) for _ in range(2)]
        master.wait_for_workers(2)
        assert not any(each.done() for each in joining)

        joining.append(pool.submit(gradwire.join, target(), **options))
        sessions = [each.result(SOON) for each in joining]

    assert sorted(session.rank for session in sessions) == [0, 1, 2]
    late = gradwire.join(target(), **options, start_timeout_seconds=JOB)
    assert late.rank == 3
    for session in (*sessions, late):
        session.close()


def test_a_port_of_http_is_named_as_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        port = server.getsockname()[1]

        def answer() -> None:
            while True:
                with server.accept()[0] as visitor:
                    if not visitor.recv(1 << 16):
                        return
                    visitor.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        pool.submit(answer)
        with pytest.raises(gradwire.UnreachableError, match=naming("HTTP", "--listen")):
            gradwire.join(
                target(), master=f"127.0.0.1:{port}", transport="tcp",
                connect_timeout_seconds=SOON / 10, start_timeout_seconds=0,
            )  # fmt: skip
        with socket.create_connection(server.getsockname()):
            pass  # says nothing, which ends the server


def test_who_waits_for_the_first_worker_s_parameters_is_told_its_name(
    master: LocalMaster,
) -> None:
    """The first worker here never sends them."""
    layout = parameters_of(target()).layout
    membership = Membership(layout.elements)
    worker = Worker(
        join_request(name="gpu7/1234", layout=layout), membership, "", random=Random(1).random
    )
    network = NetworkThread(Settings(master=master.address), worker, membership.on_closed)
    network.start(resolve_all(master.address))
    wait_until(lambda: membership.welcome is not None, "the welcome")

    refusal_naming(
        *("first worker", "rank 0 (gpu7/1234)"),
        attempt=lambda s: gradwire.join(target(), master=master.address, join_timeout_seconds=s),
    )

    network.call(worker.abort, "the test is over")
    network.stop()


def test_who_waits_for_the_run_s_parameters_is_told_how_many_have_come() -> None:
    def answer(link: Link, message: Message) -> None:
        assert isinstance(message, Join)
        link.send(welcome(layout=message.layout))
        link.send_block(Snapshot(BLOCK_ELEMENTS, bytes(4 * 2)))

    two_blocks = np.zeros(BLOCK_ELEMENTS + 2, np.float32)
    with LocalMaster(application=Answering(answer)) as master:
        refusal_naming(
            *(f"2 of {BLOCK_ELEMENTS + 2}", master.address),
            attempt=lambda s: gradwire.join(
                two_blocks, master=master.address, join_timeout_seconds=s
            ),
        )


def test_a_founder_whose_parameters_are_not_taken_is_told_so() -> None:
    release = Event()

    def answer(link: Link, message: Message) -> None:
        if isinstance(message, Join):
            link.send(welcome(layout=message.layout, founder=True))
        else:
            release.wait(JOB)  # the block is not acknowledged meanwhile

    def join_in_vain(seconds: float) -> None:
        release.clear()
        try:
            gradwire.join(target(), master=master.address, join_timeout_seconds=seconds)
        finally:
            release.set()

    with LocalMaster(application=Answering(answer)) as master:
        refusal_naming(master.address, "6 parameters", attempt=join_in_vain)


def test_a_worker_that_does_not_fit_is_told_why_keeps_its_parameters_and_leaves_nothing_behind(
    master: LocalMaster,
) -> None:
    first, mine = join(master, target()), target(1.0, 2.0)

    with pytest.raises(gradwire.RefusedError) as refused:
        join(master, mine)

    assert refused.value.code == "other_layout"
    assert str(refused.value) == naming(master.address, "'array'", "(2,)", "(6,)")
    assert mine.tolist() == [1.0, 2.0]
    assert len(first.workers) == 1
    first.step()


@pytest.mark.parametrize("options", [{}, {"quantum": 1.0}, {"quantum": QUANTUM}])
def test_parameters_that_no_quantum_expresses_are_refused_without_a_promise(
    options: dict[str, Any],
) -> None:
    with pytest.raises(gradwire.OutOfRangeError) as refused:
        gradwire.join(target(0.0, 1e9), master="127.0.0.1:9", **options)

    assert str(refused.value) == naming("array[1]", "1e+09", 1, "1.34218e+08")
    assert "would do" not in str(refused.value)


# The codec.


@pytest.mark.parametrize(
    ("settings", "is_compiled"),
    [({}, False), ({"mode": "averaging"}, True), ({"feedback": "shared"}, True)],
)
def test_what_sharing_does_not_take_is_compiled_where_the_settings_need_it(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], is_compiled: bool
) -> None:
    compiled: list[bool] = []
    monkeypatch.setattr(join_module, "warm_up_rest", lambda: compiled.append(True))
    with pytest.raises(gradwire.UnreachableError):
        gradwire.join(target(), master="nowhere.invalid:1", **settings)

    assert bool(compiled) == is_compiled


def test_compiling_is_mentioned_while_it_takes_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def compile_until_it_is_mentioned() -> None:
        wait_until(lambda: caplog.messages, "a word about it")

    monkeypatch.setattr(join_module, "SILENT_SECONDS", 0.001)
    monkeypatch.setattr(join_module, "warm_up", compile_until_it_is_mentioned)
    with caplog.at_level(logging.INFO, "gradwire"), pytest.raises(gradwire.UnreachableError):
        gradwire.join(target(), master="nowhere.invalid:1")

    first, second = caplog.messages[:2]
    assert first == naming("compiling", "codec", "once")
    assert second == naming("compiled", "codec")
