"""`play`: carries out the plan of a history from its beginning to its end, and says what is wrong.

``python tests/simulation SEED`` shows what it sees.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from traceback import extract_tb
from typing import Final, TextIO
from unittest.mock import patch

from gradwire_protocol.messages.admission import Roster
from gradwire_protocol.messages.modes.mode import Mode
from gradwire_server.log.segments import ENTRY_BYTES
from support.faults import Fault
from support.histories import History
from support.plans import SHARING, Act, Plan, Size, draw
from support.quiescence import come_to_rest, finish
from support.trace import Trace
from support.training import MASTER

FOLDER: Final = Path(__file__).parents[2] / ".cache" / "histories"
"""Where the trace of a history that fails is written."""

LINES_SHOWN: Final = 100
AGAIN_SECONDS: Final = 0.4
"""After which a fault tries again that must not strike yet."""

JOIN_SECONDS: Final = 1.0
"""In which the first workers begin."""


class HistoryFailed(Exception):  # noqa: N818  # it is what a person reads first
    """A history in which something is wrong: its text says what, when, and how to see it again."""


def play(
    seed: int,
    size: Size = "short",
    mode: Mode = SHARING,
    *,
    bursty: bool = False,
    show: TextIO | None = None,
    folder: Path = FOLDER,
    make: Callable[[Plan, Trace], History] = History,
) -> History:
    """Carry out the history of a seed.

    Parameters
    ----------
    seed : int
    size : "short", "long" or "crowd"
    mode : Mode
    bursty : bool
        Whether the network loses packets in bursts.
    show : TextIO, optional
        Where its trace is written while it happens.
    folder : Path
        Where the trace is written of one that fails.
    make : callable
        Makes it of its plan.

    Raises
    ------
    HistoryFailed
        If an invariant does not hold, or the code under test raises anything.
    """
    plan = draw(seed, size, mode, bursty=bursty)
    trace = Trace(show)
    for line in plan.lines():
        trace.note("plan", "%s", line)
    with trace.listening(MASTER), _rosters_read_once(), _sums_of_large_models(seed):
        try:
            history = make(plan, trace)
            with history.round_accounts.watching(lambda: history.ledger):
                _play(history)
        except Exception as error:
            raise HistoryFailed(_report(plan, trace, error, folder)) from error
    return history


def command_of(seed: int, size: Size, mode: Mode = SHARING, *, bursty: bool = False) -> str:
    """Return what shows a history again."""
    option = "" if size == "short" else f" --{size}"
    option += " --bursty" if bursty else ""
    option += "" if mode == SHARING else f" --mode '{mode}'"
    return f"python tests/simulation {seed}{option}"


@contextmanager
def _rosters_read_once() -> Iterator[None]:
    """Let what is sent to all be parsed once: 200 workers are told of all 200 hundreds of times.

    Nobody changes a record.
    """
    parse = lru_cache(maxsize=64)(Roster.parse)
    with patch.object(Roster, "parse", lambda payload: parse(bytes(payload))):
        yield


@contextmanager
def _sums_of_large_models(seed: int) -> Iterator[None]:
    """Let a master add up as for a large model and many workers, with odd seeds."""
    if not seed % 2:
        yield
        return
    with (
        patch("gradwire_server.log.log.SUMMED_MIN", 2),
        patch("gradwire_server.log.log.MERGED_BYTES_MAX", 2 * ENTRY_BYTES),
        patch("gradwire_server.log.dense_sums.DENSE_HITS_MIN", 4),
    ):
        yield


def _play(history: History) -> None:
    for _ in range(history.plan.workers):
        history.start_later(history.new_machine(), JOIN_SECONDS * history.random.random())
    for act in history.plan.acts:
        _play_act(history, act)
        come_to_rest(history)
    finish(history)


def _play_act(history: History, act: Act) -> None:
    network = history.network
    until = network.now + act.seconds
    history.is_training = True
    for fault in act.faults:
        network.after(fault.at, partial(_strike, history, fault, until))
    network.run_for(act.seconds)


def _strike(history: History, fault: Fault, until: float) -> None:
    """Let a fault strike, or try again while there is time."""
    network = history.network
    if network.now < until and not fault.strike(history):
        network.after(AGAIN_SECONDS, partial(_strike, history, fault, until))


def _report(plan: Plan, trace: Trace, error: Exception, folder: Path) -> str:
    seed, size = plan.seed, plan.size
    what = str(error) if type(error) is AssertionError else f"{type(error).__name__}: {error}"
    [*_, where] = extract_tb(error.__traceback__)
    what = what or f"{Path(where.filename).name}, line {where.lineno}: {where.line}"
    trace.note("checks", "%s", what)
    path = folder / f"{size}-{seed}.txt"
    trace.write_to(path)
    shown = "\n".join(trace.lines(LINES_SHOWN))
    return (
        f"the {size} history of seed {seed}: {what}\n"
        f"the last {LINES_SHOWN} lines of {len(trace)} in {path}:\n{shown}\n"
        f"again: {command_of(seed, size, plan.mode, bursty=plan.bursty)}"
    )
