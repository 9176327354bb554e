"""What is found gets its verdict, and whatever is not ok says what to do."""

import socket
from itertools import islice
from pathlib import Path

import pytest

from gradwire.cli.doctor import machine, measuring, reach
from gradwire.cli.doctor.checks import EXIT_STATUS, Check, State, as_json, show, worst
from gradwire.cli.doctor.command import judge_key
from gradwire.cli.doctor.reach import Answer, Reached, best_of, judge_reached
from gradwire_protocol import CloseCode, Role, RunKey, Suite
from gradwire_protocol.crypto.keys import SECRET_BYTES
from gradwire_udp import Features
from gradwire_udp.udp.socket_buffers import BUFFER_BYTES
from support.wording import naming

RUN_KEY = RunKey(bytes(range(SECRET_BYTES)))
OK, SLOW, BROKEN, UNMEASURED = State
HOST = (socket.AF_INET, ("10.0.2.4", 40123))
HOST6 = (socket.AF_INET6, ("fd00::4", 40123, 0, 0))

UDP = Answer(0.001, 1)
SILENT = Answer(None, 4, "no answer to 4 datagrams")
OTHER_VERSION = Answer(None, 4, "2, 3", CloseCode.VERSION)


def answers(*seconds: float | None, sent: int = 1) -> list[Answer]:
    return [Answer(each, sent) for each in seconds]


def spread(*seconds: float) -> Check:
    return reach.judge_round_trip(answers(*seconds))


@pytest.mark.parametrize(
    ("check", "state", "named"),
    [
        (machine.judge_processor({"avx2", "aes"}, 8, Suite.AES), OK, ("8", "avx2", "AES-256-GCM")),
        (machine.judge_processor({"asimd"}, 4, Suite.CHACHA), OK, ("asimd", "ChaCha20-Poly1305")),
        (machine.judge_processor(set(), 4, Suite.AES), OK, ("4",)),
        (machine.judge_processor({"sse2"}, 4, Suite.AES), SLOW, ("AVX2",)),
        (machine.judge_processor({"avx2"}, 1, Suite.AES), SLOW, ("1", "core")),
        (machine.judge_cache("/cache", 12), OK, ("12", "/cache")),
        (machine.judge_cache("/cache", 0), SLOW, ("/cache", "gradwire warm-up")),
        (machine.judge_cache(None, 0), SLOW, ("NUMBA_CACHE_DIR",)),
        (machine.judge_kernel(Features(), "linux"), OK, ("GSO", "GRO")),
        (machine.judge_kernel(Features(gso=False), "linux"), SLOW, ("GSO", "Linux 5.0")),
        (machine.judge_kernel(Features(gso=False, gro=False), "darwin"), SLOW, ("GSO", "GRO")),
        (machine.judge_buffers(BUFFER_BYTES, BUFFER_BYTES), OK, ("8 MiB",)),
        (machine.judge_buffers(BUFFER_BYTES, 212_992), SLOW,
         ("0.203 MiB", f"net.core.wmem_max={BUFFER_BYTES}")),
        (reach.judge_loss(answers(0.1, 0.1)), OK, ("0", "2")),
        (reach.judge_loss([*answers(0.1), Answer(0.1, 2), Answer(None, 4)]), SLOW, ("5", "7")),
        (spread(0.020, 0.021, 0.022), OK, ("21 ms", "20")),
        (spread(0.2, 0.2, 0.2), SLOW, ("200 ms", "gradwire estimate --rtt")),
        (spread(0.001, 0.001, 0.040), SLOW, ("39 more", "Wi-Fi")),
        (reach.judge_round_trip(answers(0.2, sent=2)), UNMEASURED, ("1",)),
        (measuring.judge_size(8_900), OK, ("8900",)),
        (measuring.judge_size(1_400), OK, ("1400",)),
        (measuring.judge_size(1_200), SLOW, ("1200", "1448", "datagram_bytes=1200")),
        (measuring.judge_clock(0.004), OK, ("0.004 s ahead",)),
        (measuring.judge_clock(-90.0), SLOW, ("90 s behind", "timedatectl set-ntp true")),
        (measuring.judge_rate("out", 2**26, 1.0), OK, ("537 Mbit/s", "64 MiB")),
        (measuring.judge_rate("in", 250_000, 2.0), SLOW, ("1 Mbit/s", "--link 1Mbit")),
        (measuring.judge_rate("in", 0, 2.0), BROKEN, ("64 MiB", "2 s")),
        (measuring.judge_other_end({"gradwire": "1.2"}), OK, ("1.2",)),
        (judge_key(None), OK, ("none",)),
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
        ((OK, UNMEASURED), OK, 0),
        ((OK, SLOW, UNMEASURED), SLOW, 1),
        ((SLOW, BROKEN, OK), BROKEN, 5),
    ],
)
def test_the_worst_line_is_the_verdict_and_the_exit_status(
    states: tuple[State, ...], expected: State, status: int
) -> None:
    checks = [Check("a", state, "text") for state in states]

    assert worst(checks) is expected
    assert EXIT_STATUS[worst(checks)] == status
    assert as_json(checks)["verdict"] == expected.value


def test_lines_begin_with_their_state_and_what_to_do_follows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show([Check("port", OK, "fine"), Check("clock", SLOW, "late", "set it")])

    first, second, third = capsys.readouterr().out.splitlines()
    assert first.split() == ["ok", "port", "fine"]
    assert second.split() == ["slow", "clock", "late"]
    assert third.split() == ["->", "set", "it"]


@pytest.mark.parametrize(
    ("text", "vectors"),
    [
        ("processor : 0\nflags\t\t: fpu avx2 aes\nflags : avx512f\n", ["avx2"]),
        ("Features\t: fp asimd\n", ["asimd"]),
        ("model name : avx2\n", []),
    ],
)
def test_a_processor_s_flags_are_those_of_its_first_core(
    text: str, vectors: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(text, encoding="utf-8")
    monkeypatch.setattr(machine, "CPUINFO", cpuinfo)

    _, processor = islice(machine.machine_checks(), 2)

    assert processor.figures["vectors"] == vectors
