"""A timer fires once, at its time and never before."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from time import monotonic
from typing import Any

import pytest

from gradwire_udp import Timer, timers
from support.loops import LOOPS_BY_NAME
from support.waiting import until

KINDS = pytest.mark.parametrize(
    ("kind", "precise"),
    [(kind, precise) for kind in ("asyncio", "uvloop") for precise in (True, False)],
    ids=lambda value: value if isinstance(value, str) else ("precise" if value else "coarse"),
)


class Recorder:
    """A timer, and when it fired."""

    def __init__(self, *, precise: bool) -> None:
        self.fired_at: list[float] = []
        self.then: Callable[[], None] = lambda: None
        self.precise = precise
        self.timer = Timer(asyncio.get_running_loop(), self.fire, precise=precise)

    def fire(self) -> None:
        self.fired_at.append(monotonic())
        self.then()


def run_on(kind: str, precise: bool, test: Callable[[Recorder], Awaitable[None]]) -> None:
    async def run() -> None:
        recorder = Recorder(precise=precise)
        try:
            await test(recorder)
        finally:
            recorder.timer.close()

    with asyncio.Runner(loop_factory=LOOPS_BY_NAME[kind]) as runner:
        runner.run(run())


def on_every_timer(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Make a test of a coroutine that is given a timer: one of every kind, on every loop."""

    @wraps(test)
    def run(kind: str, precise: bool, **parameters: Any) -> None:
        run_on(kind, precise, partial(test, **parameters))

    names = [name for name in signature(test).parameters if name != "recorder"]
    added = [Parameter(name, Parameter.KEYWORD_ONLY) for name in (*names, "kind", "precise")]
    vars(run)["__signature__"] = Signature(added)
    made: Callable[..., None] = KINDS(run)
    return made


@on_every_timer
@pytest.mark.parametrize("wait", [-1.0, 0.0, 0.0001, 0.0015, 0.01])
async def test_it_fires_once_and_not_before_its_time(recorder: Recorder, wait: float) -> None:
    deadline = monotonic() + wait
    recorder.timer.set(deadline)
    assert recorder.fired_at == []

    await until(lambda: recorder.fired_at, "the timer")
    await others_have_fired(recorder)

    [fired_at] = recorder.fired_at
    assert fired_at >= deadline


@on_every_timer
async def test_it_can_be_moved_to_an_earlier_time(recorder: Recorder) -> None:
    recorder.timer.set(monotonic() + 3_600.0)
    recorder.timer.set(monotonic() + 0.002)

    await until(lambda: recorder.fired_at, "the timer")

    assert len(recorder.fired_at) == 1


@on_every_timer
@pytest.mark.parametrize("instead", [None, math.inf])
async def test_what_is_not_wanted_any_more_does_not_fire(
    recorder: Recorder, instead: float | None
) -> None:
    recorder.timer.set(monotonic() + 0.001)
    recorder.timer.set(instead)

    await others_have_fired(recorder)

    assert recorder.fired_at == []


@on_every_timer
async def test_it_can_be_set_again_when_it_fires(recorder: Recorder) -> None:
    def again() -> None:
        if len(recorder.fired_at) < 5:
            recorder.timer.set(monotonic() + 0.0003)

    recorder.then = again
    recorder.timer.set(monotonic())

    await until(lambda: len(recorder.fired_at) == 5, "five rounds")
    await others_have_fired(recorder)

    assert len(recorder.fired_at) == 5


@on_every_timer
async def test_closing_it_is_the_end(recorder: Recorder) -> None:
    recorder.timer.set(monotonic())
    recorder.timer.close()
    recorder.timer.close()

    await others_have_fired(recorder)

    assert recorder.fired_at == []


@on_every_timer
async def test_it_can_be_closed_when_it_fires(recorder: Recorder) -> None:
    recorder.then = recorder.timer.close
    recorder.timer.set(monotonic())

    await until(lambda: recorder.fired_at, "the timer")
    await others_have_fired(recorder)

    assert len(recorder.fired_at) == 1


@pytest.mark.parametrize("kind", ["asyncio", "uvloop"])
def test_where_a_deadline_moves_later_the_system_is_not_asked(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    ask = timers._set_timer_descriptor

    def counted(descriptor: int, nanoseconds: int) -> None:
        asked.append(nanoseconds)
        ask(descriptor, nanoseconds)

    async def test(recorder: Recorder) -> None:
        if not recorder.timer.is_precise:
            pytest.skip("this system has no timers that are files")
        now = monotonic()
        for i in range(100):
            recorder.timer.set(now + 0.001 + i / 10_000)
        assert len(asked) == 1

        await until(lambda: recorder.fired_at, "the timer")

        assert len(asked) <= 3
        assert recorder.fired_at[0] >= now + 0.001 + 99 / 10_000

    monkeypatch.setattr(timers, "_set_timer_descriptor", counted)
    run_on(kind, True, test)


@pytest.mark.parametrize("kind", ["asyncio", "uvloop"])
def test_where_the_system_has_no_such_timers_the_loop_s_are_used(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timers, "_new_timer_descriptor", lambda: None)

    async def test(recorder: Recorder) -> None:
        recorder.timer.set(monotonic())

        await until(lambda: recorder.fired_at, "the timer")

        assert not recorder.timer.is_precise

    run_on(kind, True, test)


async def others_have_fired(recorder: Recorder) -> None:
    """Wait until a timer set now has fired, which those of its kind set before must have."""
    later = Recorder(precise=recorder.precise)
    later.timer.set(monotonic() + 0.005)
    await until(lambda: later.fired_at, "a later timer")
    later.timer.close()
