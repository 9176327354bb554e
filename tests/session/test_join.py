"""`gradwire.join` against a real master on loopback: who gets in, and who is told what."""

import logging
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random
from threading import Event
from threading import enumerate as enumerate_threads
from typing import Any

import numpy as np
import pytest
import torch

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
from gradwire_server.config import MasterConfig
from gradwire_udp import resolve_all
from support.local_master import Answering, LocalMaster
from support.peer import join_request, welcome
from support.sessions import change, join, zeros
from support.waiting import wait_until
from support.wording import naming

QUANTUM = 2.0**-24
MODEL = torch.nn.Linear(3, 2)
OPTIMIZER = torch.optim.SGD(MODEL.parameters())


@contextmanager
def silent_port() -> Iterator[int]:
    """Yield a UDP port where nobody ever answers."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


def target(*values: float) -> Float32Array:
    return np.array(values or [0.0] * 6, np.float32)


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


def test_the_first_worker_s_own_parameters_go_to_the_lattice_too(master: LocalMaster) -> None:
    """Both begin with the same bits, so the founder's are rounded to whole quanta."""
    given, theirs = target(0.1, 1 / 3), target(0.0, 0.0)
    mine = given.copy()

    for each in (mine, theirs):
        join(master, each)

    assert mine.tobytes() == theirs.tobytes()
    assert mine.tolist() == [round(value / QUANTUM) * QUANTUM for value in given.tolist()]


def test_a_module_is_trained_in_place(master: LocalMaster) -> None:
    torch.manual_seed(1)
    mine, theirs = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    weight = theirs.weight

    for each in (mine, theirs):
        join(master, each)

    assert theirs.weight is weight
    assert torch.equal(mine.weight, theirs.weight)
    assert torch.equal(mine.bias, theirs.bias)


@pytest.mark.parametrize("loop", ["auto", "asyncio", "uvloop"])
def test_every_event_loop_does(master: LocalMaster, loop: Any) -> None:
    with join(master, loop=loop) as session:
        session.step()

    assert master.sample("gradwire_leaves_total", {"reason": "left"}) == 1


def test_a_rank_and_a_run_can_be_asked_for(master: LocalMaster) -> None:
    first = join(master, run="alpha", rank=5)
    second = join(master, rank=5)

    assert (first.rank, first.run) == (5, "alpha")
    assert (second.rank, second.run) == (0, "alpha")


def test_settings_come_from_the_environment_and_from_a_file(
    master: LocalMaster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "gradwire.toml"
    config.write_text("[session]\nquantum = 0.0009765625\nrun = 'from the file'\n")
    monkeypatch.setenv("GRADWIRE_MASTER", master.address)
    monkeypatch.setenv("GRADWIRE_RUN", "alpha")

    session = gradwire.join(target(), config=config)

    assert (session.run, session.quantum) == ("alpha", 2.0**-10)
    session.close()


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


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_parameters_that_are_not_finite_are_named(value: float) -> None:
    module = torch.nn.Linear(3, 2)
    with torch.no_grad():
        module.weight[1, 2] = value

    with pytest.raises(gradwire.NonFiniteError, match=naming("weight[1, 2]", value)):
        gradwire.join(module, master="127.0.0.1:9")


# Not getting in.


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"master": None}, ("master", "GRADWIRE_MASTER")),
        ({"target": 3}, ("target", "torch.nn.Module")),
        ({"master": "127.0.0.1:x"}, ("127.0.0.1:x", "port", "'x'")),
        ({"master": "http://10.0.2.4:8080"}, ("http://10.0.2.4:8080", "without 'http://'")),
        ({"threshold": -1.0}, ("threshold", -1.0)),
        ({"target": MODEL.parameters()}, ("list(model.parameters())",)),
        ({"target": MODEL.state_dict()}, ("pass the model itself",)),
        (
            {"target": OPTIMIZER},
            ("join(model, optimizer=optimizer)",),
        ),
    ],
)
def test_what_cannot_work_is_refused_at_once_with_the_remedy(
    options: dict[str, Any], named: tuple[object, ...]
) -> None:
    usual: dict[str, Any] = {"target": target(), "master": "127.0.0.1:9"}

    with pytest.raises(gradwire.UsageError, match=naming(*named)):
        gradwire.join(**usual | options)


def test_an_optimizer_by_position_is_refused_with_the_remedy() -> None:
    with pytest.raises(
        gradwire.UsageError, match=naming("SGD", "join(model, optimizer=optimizer)")
    ):
        gradwire.join(MODEL, OPTIMIZER)  # type: ignore[arg-type]  # as a script does, unchecked


@pytest.mark.parametrize("host", ["fe80::1%nowhere", "x" * 64])
def test_a_host_that_is_not_known_is_unreachable(host: str) -> None:
    with pytest.raises(gradwire.UnreachableError, match=naming(host, "IP address")):
        gradwire.join(target(), master=f"[{host}]:9")


def test_a_master_that_does_not_answer_is_unreachable() -> None:
    with silent_port() as port, pytest.raises(gradwire.UnreachableError) as refused:
        gradwire.join(target(), master=f"127.0.0.1:{port}", connect_timeout_seconds=1.0,
                      start_timeout_seconds=1.5)  # fmt: skip

    assert str(refused.value) == naming(
        *(f"127.0.0.1:{port}", "1.5 s", "UDP", "TCP: Connection refused", "firewalls", "key")
    )


def test_a_worker_may_come_before_its_master() -> None:
    with silent_port() as port:
        address = f"127.0.0.1:{port}"
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(
            gradwire.join, target(), master=address,
            connect_timeout_seconds=0.5, start_timeout_seconds=60.0,
        )  # fmt: skip
        with pytest.raises(TimeoutError):  # the time for a machine that is silent is over
            joining.result(1.0)
        with LocalMaster(listen=address):
            session = joining.result(30)
            assert session.transport == "udp"
            session.close()


def test_workers_that_know_of_each_other_begin_together(master: LocalMaster) -> None:
    options: dict[str, Any] = {"master": master.address, "workers": 3}
    with ThreadPoolExecutor(3) as pool:
        joining = [pool.submit(gradwire.join, target(), **options) for _ in range(2)]
        master.wait_for_workers(2)
        assert not any(each.done() for each in joining)

        joining.append(pool.submit(gradwire.join, target(), **options))
        sessions = [each.result(30) for each in joining]

    assert sorted(session.rank for session in sessions) == [0, 1, 2]
    late = gradwire.join(target(), **options, start_timeout_seconds=3_600.0)
    assert late.rank == 3
    for session in (*sessions, late):
        session.close()


def test_who_comes_late_does_not_wait_for_who_is_gone(master: LocalMaster) -> None:
    """But begins with the next update of one that trains."""
    trains = join(master)
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(
            gradwire.join, zeros(), master=master.address, workers=5, start_timeout_seconds=3_600.0
        )
        master.wait_for_workers(2)
        trains.push(change(1.0, 0, 0, 0))
        session = joining.result(30)

    session.close()


@pytest.mark.parametrize("kind", ["array", "module"])
def test_a_target_takes_part_once(master: LocalMaster, kind: str) -> None:
    trained: Any = target() if kind == "array" else torch.nn.Linear(3, 2)
    options: dict[str, Any] = {"master": master.address}
    session = gradwire.join(trained, **options)
    was_open = session.is_open

    with pytest.raises(gradwire.UsageError, match=naming("rank 0", "'default'", "close()")):
        gradwire.join(trained, **options)

    session.close()
    assert (was_open, session.is_open) == (True, False)
    gradwire.join(trained, **options).close()


def test_a_model_that_nothing_trains_is_warned_of(master: LocalMaster) -> None:
    frozen = torch.nn.Linear(3, 2).requires_grad_(False)

    with pytest.warns(gradwire.GradwireWarning, match=naming("2 parameters", "Linear")) as warned:
        gradwire.join(frozen, master=master.address).close()

    assert warned[0].filename == __file__


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
                connect_timeout_seconds=0.5, start_timeout_seconds=0,
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
    network = NetworkThread(Settings(master=master.address), worker, membership)
    network.start(resolve_all(master.address))
    wait_until(lambda: membership.welcome is not None, "the welcome")

    with pytest.raises(gradwire.DeadlineError) as refused:
        gradwire.join(target(), master=master.address, join_timeout_seconds=0.2)

    assert str(refused.value) == naming("0.2 s", "first worker", "rank 0 (gpu7/1234)")
    network.call(worker.abort, "the test is over")
    network.stop()


def test_who_waits_for_the_run_s_parameters_is_told_how_many_have_come() -> None:
    def answer(link: Link, message: Message) -> None:
        assert isinstance(message, Join)
        link.send(welcome(layout=message.layout))
        link.send_block(Snapshot(BLOCK_ELEMENTS, bytes(4 * 2)))

    two_blocks = np.zeros(BLOCK_ELEMENTS + 2, np.float32)
    with LocalMaster(application=Answering(answer)) as master:
        with pytest.raises(gradwire.DeadlineError) as refused:
            gradwire.join(two_blocks, master=master.address, join_timeout_seconds=0.2)

        assert str(refused.value) == naming("0.2 s", f"2 of {BLOCK_ELEMENTS + 2}", master.address)


def test_a_founder_whose_parameters_are_not_taken_is_told_so() -> None:
    release = Event()

    def answer(link: Link, message: Message) -> None:
        if isinstance(message, Join):
            link.send(welcome(layout=message.layout, founder=True))
        else:
            release.wait(10.0)  # the block is not acknowledged meanwhile

    with LocalMaster(application=Answering(answer)) as master:
        with pytest.raises(gradwire.DeadlineError) as refused:
            gradwire.join(target(), master=master.address, join_timeout_seconds=0.2)
        release.set()

        assert str(refused.value) == naming("0.2 s", master.address, "6 parameters")


@pytest.mark.parametrize(
    ("values", "options", "code", "named"),
    [
        ((1.0, 2.0), {}, "other_layout", ("'array'", "(2,)", "(6,)")),
    ],
)
def test_a_worker_that_does_not_fit_is_told_why_keeps_its_parameters_and_leaves_nothing_behind(
    master: LocalMaster,
    values: tuple[float, ...],
    options: dict[str, Any],
    code: str,
    named: tuple[str, ...],
) -> None:
    first, mine = join(master, target()), target(*values)

    with pytest.raises(gradwire.RefusedError) as refused:
        join(master, mine, **options)

    assert refused.value.code == code
    assert str(refused.value) == naming(master.address, *named)
    assert mine.tolist() == list(values)
    assert len(first.workers) == 1
    first.step()


@pytest.mark.parametrize("transport", ["udp", "tcp"])
def test_one_worker_too_many_is_refused(transport: str) -> None:
    with LocalMaster(MasterConfig(workers_max=1)) as master:
        join(master)

        with pytest.raises(
            gradwire.RefusedError, match=naming("1 workers", "--workers-max")
        ) as refused:
            join(master, transport=transport)

        assert refused.value.code == "run_full"


@pytest.mark.parametrize("options", [{}, {"quantum": 1.0}, {"quantum": QUANTUM}])
def test_parameters_that_no_quantum_expresses_are_refused_without_a_promise(
    options: dict[str, Any],
) -> None:
    with pytest.raises(gradwire.OutOfRangeError) as refused:
        gradwire.join(target(0.0, 1e9), master="127.0.0.1:9", **options)

    assert str(refused.value) == naming("array[1]", "1e+09", 1, "1.34218e+08")
    assert "would do" not in str(refused.value)


# The codec.


def test_compiling_is_mentioned_while_it_takes_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def compile_until_it_is_mentioned() -> None:
        wait_until(lambda: caplog.messages, "a word about it")

    monkeypatch.setattr("gradwire.threads.notice.SILENT_SECONDS", 0.001)
    monkeypatch.setattr(join_module, "SILENT_SECONDS", 0.001)
    monkeypatch.setattr(join_module, "warm_up", compile_until_it_is_mentioned)
    with caplog.at_level(logging.INFO, "gradwire"), pytest.raises(gradwire.UnreachableError):
        gradwire.join(target(), master="nowhere.invalid:1")

    first, second = caplog.messages[:2]
    assert first == naming("waiting", "codec", "compiled", "kernels")
    assert second == naming("compiled", "codec")


def test_the_codec_s_threads_end_with_the_session(master: LocalMaster) -> None:
    def threads() -> list[str]:
        return [thread.name for thread in enumerate_threads() if "codec" in thread.name]

    mine = np.zeros(2**20, np.float32)
    session = join(master, mine, codec_threads=2, threshold=0.25)
    mine[::1000] = 1
    session.step()

    assert len(threads()) == 1
    session.close()
    assert threads() == []
