"""Lines of a process, and those that a progress bar writes over each other."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.cli.launch.lines import LINE_BYTES_MAX, PROGRESS_SECONDS, Lines


class Written:
    """What is shown of an output that is written piece by piece, in a time of its own."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self._now = 0.0
        self._calls: list[tuple[float, Callable[[], None]]] = []
        self._lines = Lines(self.shown.append, self._call_later)

    def _call_later(self, seconds: float, call: Callable[[], None]) -> None:
        self._calls.append((self._now + seconds, call))

    def write(self, *chunks: bytes, each_seconds: float = 0.0) -> None:
        """Write pieces, and let time pass after each."""
        for chunk in chunks:
            self._lines.feed(chunk)
            until = self._now + each_seconds
            while self._calls and self._calls[0][0] <= until:
                self._now, call = self._calls.pop(0)
                call()
            self._now = until

    def end(self) -> list[str]:
        """End the output; return all that was shown."""
        self._lines.end()
        return self.shown


def written(*chunks: bytes, each_seconds: float = 0.0) -> list[str]:
    """Return the lines that are shown of an output that is written in these pieces."""
    output = Written()
    output.write(*chunks, each_seconds=each_seconds)
    return output.end()


@given(st.lists(st.sampled_from(["a", "bc", "\n", "d\n", "e f", "", "\u2588"])))
def test_without_carriage_returns_a_newline_ends_a_line_wherever_it_is_cut(
    chunks: list[str],
) -> None:
    whole = "".join(chunks)

    shown = written(*(bytes([byte]) for byte in whole.encode()))

    assert shown == whole.removesuffix("\n").split("\n") * bool(whole)


@pytest.mark.parametrize("chunks", [[b"one\r\ntwo\r\n"], [b"one\r", b"\ntwo", b"\r", b"\n"]])
@pytest.mark.parametrize("seconds", [0.0, 2.0])
def test_a_line_of_windows_is_one_line(chunks: list[bytes], seconds: float) -> None:
    assert written(*chunks, each_seconds=seconds) == ["one", "two"]


@pytest.mark.parametrize("style", [b"\r%d %%", b"%d %%\r", b"\r%d %%\x1b[K"])
def test_a_bar_is_shown_while_it_moves_twice_a_second_and_its_end_once(style: bytes) -> None:
    bar = [style % percent for percent in range(0, 101, 2)]

    shown = written(*bar, b"\n", each_seconds=0.1)

    assert len(shown) == pytest.approx(0.1 * len(bar) / PROGRESS_SECONDS, abs=2)
    percent = [int(line.split()[0]) for line in shown]
    assert percent == sorted(set(percent))
    assert percent[-1] == 100


@pytest.mark.parametrize("style", [b"\r%d", b"%d\r"])
def test_a_bar_that_moves_rarely_is_shown_at_each_step(style: bytes) -> None:
    shown = written(*(style % i for i in range(1, 5)), each_seconds=3.0)

    assert shown == ["1", "2", "3", "4"]


def test_what_a_burst_has_written_over_is_shown_as_it_is_in_the_end() -> None:
    assert written(b"1\r2\r3\nand\n") == ["3", "and"]
    assert written(b"\r1\r2\r3") == ["3"]


def test_an_ordinary_line_never_waits_for_a_bar() -> None:
    output = Written()

    output.write(b"1\r", b"2\rlost\n")

    assert output.shown == ["1", "lost"]


def test_a_bar_without_an_end_takes_no_memory() -> None:
    assert written(*[b"\r" + b"x" * 1000] * 1000) == ["x" * 1000]


def test_a_long_line_is_shown_in_pieces() -> None:
    long = b"x" * (LINE_BYTES_MAX + 1)

    assert written(long, b"y\n") == [long.decode(), "y"]
