"""Enough buffer is asked for, and said once where it is not granted."""

import logging
import socket
import sys
from typing import Any

import pytest

from gradwire_udp import open_socket
from gradwire_udp.udp import kernel_features
from gradwire_udp.udp.kernel_features import SO_RCVBUFFORCE, SO_SNDBUFFORCE, ask_for_buffers
from support.wording import naming

linux = sys.platform == "linux"


class MeanSocket(socket.socket):
    """A socket that may not force anything, on a system that grants so many bytes."""

    grants = 1_000_000

    def setsockopt(self, *arguments: Any) -> None:
        if linux and arguments[1] in (SO_RCVBUFFORCE, SO_SNDBUFFORCE):
            raise PermissionError
        if not linux and arguments[2] > self.grants:
            raise OSError("no buffer space")
        super().setsockopt(*arguments)

    def getsockopt(self, *_: Any) -> int:  # type: ignore[override]
        return 2 * self.grants if linux else self.grants


@pytest.fixture(autouse=True)
def nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a fresh process."""
    monkeypatch.setattr(kernel_features, "_warned", False)


def test_what_is_granted_needs_no_words(caplog: pytest.LogCaptureFixture) -> None:
    with open_socket(("127.0.0.1", 0)) as sock:
        ask_for_buffers(sock, 100_000)

        assert caplog.records == []
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            assert sock.getsockopt(socket.SOL_SOCKET, option) >= 100_000


@pytest.mark.skipif(not linux, reason="the words are Linux's")
def test_what_is_not_granted_is_said_once_and_with_what_to_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for _ in range(3):
        with MeanSocket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            ask_for_buffers(sock, 8_388_608)

    assert [(r.name, r.levelno, r.getMessage()) for r in caplog.records] == [
        (
            "gradwire.udp",
            logging.WARNING,
            naming(
                1_000_000,
                8_388_608,
                "sysctl -w net.core.rmem_max=8388608 net.core.wmem_max=8388608",
            ),
        )
    ]


def test_other_systems_have_another_setting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(f"{__name__}.linux", False)
    with MeanSocket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        ask_for_buffers(sock, 8_388_608)

    [record] = caplog.records
    assert record.getMessage() == naming("sysctl -w kern.ipc.maxsockbuf=16777216")
