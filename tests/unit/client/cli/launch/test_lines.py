"""Lines of a process, and those that a progress bar writes over each other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.cli.launch.lines import LINE_BYTES_MAX, PROGRESS_SECONDS, Lines, Pace


def written(*chunks: bytes, each_seconds: float = 0.0) -> list[bytes]:
    """Return the lines that are shown of an output that is written in these chunks."""
    lines, now, shown = Lines(Pace()), 100.0, list[bytes]()
    for chunk in chunks:
        shown += lines.feed(chunk, now)
        until = now + each_seconds
        while (next_at := lines.next_at) is not None and next_at <= until:
            now = max(next_at, now)
            shown += lines.look(now)
        now = until
    return shown + lines.end()


@given(st.lists(st.sampled_from([b"a", b"bc", b"\n", b"d\n", b"e f", b""])))
def test_without_carriage_returns_a_newline_ends_a_line_wherever_it_is_cut(
    chunks: list[bytes],
) -> None:
    whole = b"".join(chunks)

    assert written(*chunks) == whole.removesuffix(b"\n").split(b"\n") * bool(whole)


@pytest.mark.parametrize("chunks", [[b"one\r\ntwo\r\n"], [b"one\r", b"\ntwo", b"\r", b"\n"]])
@pytest.mark.parametrize("seconds", [0.0, 2.0])
def test_a_line_of_windows_is_one_line(chunks: list[bytes], seconds: float) -> None:
    assert written(*chunks, each_seconds=seconds) == [b"one", b"two"]


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

    assert shown == [b"1", b"2", b"3", b"4"]


def test_what_a_burst_has_written_over_is_shown_as_it_is_in_the_end() -> None:
    assert written(b"1\r2\r3\nand\n") == [b"3", b"and"]
    assert written(b"\r1\r2\r3") == [b"2", b"3"]


def test_an_ordinary_line_never_waits_for_a_bar() -> None:
    lines = Lines(Pace())
    assert lines.feed(b"1\r", 100.0) == [b"1"]

    assert lines.feed(b"2\rlost\n", 100.1) == [b"lost"]


def test_both_outputs_of_a_process_share_their_pace() -> None:
    pace = Pace()
    out, err = Lines(pace), Lines(pace)

    assert out.feed(b"1\r", 100.0) == [b"1"]
    assert err.feed(b"a\r", 100.1) == []
    assert err.next_at == 100.0 + PROGRESS_SECONDS
    assert err.look(100.5) == [b"a"]


def test_a_bar_without_an_end_takes_no_memory() -> None:
    lines = Lines(Pace())
    for _ in range(1000):
        lines.feed(b"\r" + b"x" * 1000, 100.0)

    assert len(lines.end()[0]) == 1000


def test_a_long_line_is_passed_on_in_pieces() -> None:
    long = b"x" * (LINE_BYTES_MAX + 1)

    assert written(long, b"y\n") == [long, b"y"]
