"""What is found gets its verdict, and whatever is not ok says what to do."""

import socket

import pytest

from gradwire.cli.doctor import (
    EXIT_STATUS,
    Check,
    State,
    best_of,
    judge_buffers,
    judge_key,
    judge_loss,
    judge_reached,
    judge_round_trip,
    show,
    worst,
)
from gradwire.cli.probes import Answer, Reached
from gradwire_protocol import CloseCode, Role, RunKey
from gradwire_protocol.crypto.keys import SECRET_BYTES
from gradwire_udp.udp.kernel_features import BUFFER_BYTES
from support.wording import naming

RUN_KEY = RunKey(bytes(range(SECRET_BYTES)))
OK, SLOW, BROKEN = State
HOST = (socket.AF_INET, ("10.0.2.4", 40123))
HOST6 = (socket.AF_INET6, ("fd00::4", 40123, 0, 0))

UDP = Answer(0.001, 1)
SILENT = Answer(None, 4, "no answer to 4 datagrams")
OTHER_VERSION = Answer(None, 4, "2, 3", CloseCode.VERSION)


def answers(*seconds: float, sent: int = 1) -> list[Answer]:
    return [Answer(each, sent) for each in seconds]


@pytest.mark.parametrize(
    ("check", "state", "named"),
    [
        (judge_buffers(BUFFER_BYTES, BUFFER_BYTES), OK, ("8 MiB",)),
        (judge_buffers(BUFFER_BYTES, 212_992), SLOW,
         ("0.203 MiB", f"net.core.wmem_max={BUFFER_BYTES}")),
        (judge_loss(answers(0.1, 0.1)), OK, ("0", "2")),
        (judge_loss([*answers(0.1), Answer(0.1, 2), Answer(None, 4)]), SLOW, ("5", "7")),
        (judge_round_trip(answers(0.020, 0.021, 0.022)), OK, ("21 ms", "20")),
        (judge_round_trip(answers(0.2, 0.2, 0.2)), SLOW, ("200 ms", "gradwire estimate --rtt")),
        (judge_round_trip(answers(0.001, 0.001, 0.040)), SLOW, ("39 more", "Wi-Fi")),
        (judge_round_trip(answers(0.2, sent=2)), SLOW, ("1",)),
        (judge_key(None), OK, ("none",)),
        (judge_key(RUN_KEY.issuing_key(Role.WORKER)), OK,
         (RUN_KEY.fingerprint.hex(), "worker")),
        (judge_key(RUN_KEY), OK, (RUN_KEY.fingerprint.hex(),)),
        (judge_key(RUN_KEY.worker_key("gpu7", Role.OBSERVER)), OK,
         (RUN_KEY.fingerprint.hex(), "observer", "gpu7")),
    ],
)  # fmt: skip
def test_each_finding_has_its_verdict(check: Check, state: State, named: tuple[str, ...]) -> None:
    assert check.state is state
    assert f"{check.text} {check.remedy}" == naming(*named)
    assert bool(check.remedy) is (state in (SLOW, BROKEN))


@pytest.mark.parametrize(
    ("udp", "tcp", "port", "has_key", "state", "named"),
    [
        (UDP, None, "open", True, OK, ("UDP", "10.0.2.4:40123")),
        (UDP, None, "refused", False, OK, ("UDP",)),
        (SILENT, UDP, "open", True, SLOW, ("only TCP", "firewall")),
        (SILENT, SILENT, "open", True, BROKEN, ("with this key", "gradwire keygen --worker NAME")),
        (SILENT, SILENT, "open", False, BROKEN, ("without a key", "--key-file")),
        (SILENT, None, "refused", True, BROKEN, ("nothing listens", "gradwire master --listen")),
        (SILENT, None, "silent", True, BROKEN, ("firewall", "ping")),
        (OTHER_VERSION, SILENT, "open", False, BROKEN, ("version 2, 3", "same version")),
        (SILENT, OTHER_VERSION, "open", False, BROKEN, ("version 2, 3", "same version")),
    ],
)
def test_what_answers_and_what_does_not_says_what_is_wrong(
    udp: Answer, tcp: Answer | None, port: str, has_key: bool, state: State, named: tuple[str, ...]
) -> None:
    check = judge_reached([Reached(HOST, udp, tcp, port)], has_key=has_key)

    assert check.state is state
    assert f"{check.text} {check.remedy}" == naming(*named)
    assert bool(check.remedy) is (state is not OK)


def test_of_several_addresses_the_one_that_answers_counts_and_the_others_are_named() -> None:
    dead = Reached(HOST6, SILENT, None, "refused")
    alive = Reached(HOST, UDP, None, "open")

    check = judge_reached([dead, alive], has_key=False)

    assert best_of([dead, alive]) is alive
    assert check.state is OK
    assert check.text == naming("10.0.2.4:40123", "nothing at [fd00::4]:40123")


@pytest.mark.parametrize(
    ("states", "expected", "status"),
    [
        ((OK, OK), OK, 0),
        ((OK, SLOW), SLOW, 1),
        ((SLOW, BROKEN, OK), BROKEN, 5),
    ],
)
def test_the_worst_line_is_the_verdict_and_the_exit_status(
    states: tuple[State, ...], expected: State, status: int
) -> None:
    checks = [Check("a", state, "text") for state in states]

    assert worst(checks) is expected
    assert EXIT_STATUS[worst(checks)] == status


def test_lines_begin_with_their_state_and_what_to_do_follows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show([Check("port", OK, "fine"), Check("buffers", SLOW, "small", "set it")])

    first, second, third = capsys.readouterr().out.splitlines()
    assert first.split() == ["ok", "port", "fine"]
    assert second.split() == ["slow", "buffers", "small"]
    assert third.split() == ["->", "set", "it"]
