"""Every parser bears what nobody would send; and what fuzzing is for, it finds."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from fuzz import corpus
from fuzz.campaign import Budget, Campaign, Turn, total
from support.tiers import IS_DEEP, count, variants

EXECUTIONS = count(30_000, quick=2_000, of="inputs of fuzzing for each parser")
SECONDS = 5 if IS_DEEP else None
"""In the deep tier the slow targets end by the time, the fast ones by the count; in the quick tier
all end by the count, however busy the machine is."""
EXECUTIONS_MIN = 100_000 if IS_DEEP else EXECUTIONS
"""Of all targets together, in every run of the tests."""

needs_atheris = pytest.mark.skipif(
    find_spec("atheris") is None, reason="atheris is not made for this machine"
)

FAULTS = {
    "crash": ("if data[:1] == b'!': [][1]", "IndexError"),
    "hang": ("while data[:1] == b'!': pass", "timeout after"),
    "growth": ("kept.append(4_000 * b'x')", "out-of-memory"),
    "claim": ("if data[:1] == b'!': import numpy; numpy.empty(2**32)", "MemoryError"),
}
"""What a target does wrong, and what is said about it."""

FAULTY_TARGET = """
BYTES_MAX = 4
kept = []

def seeds():
    return [b"?"]

def check(data):
    {fault}
"""


@pytest.mark.parametrize("name", corpus.TARGETS)
def test_nothing_in_the_corpus_does_any_harm(name: str) -> None:
    target = corpus.load(name)
    inputs = corpus.inputs(name)

    for file in inputs:
        target.check(file.read_bytes())

    assert inputs


def test_what_is_checked_in_is_small_and_of_a_target() -> None:
    sizes = [file.stat().st_size for name in corpus.TARGETS for file in corpus.inputs(name)]

    assert sum(sizes) <= corpus.BYTES_MAX
    assert sorted(folder.name for folder in corpus.CHECKED_IN.iterdir()) == list(corpus.TARGETS)


@needs_atheris
def test_many_inputs_do_no_harm(tmp_path: Path) -> None:
    # Beside other tests, inputs of a millisecond have taken more than one second of the clock.
    budget = Budget(executions=EXECUTIONS, seconds=SECONDS, seed=1, hang_seconds=10)
    targets = variants("packets", *(set(corpus.TARGETS) - {"packets"}))

    turns = Campaign(tmp_path).take_turns(targets, budget, jobs=2)

    assert [turn.failure for turn in turns] == [""] * len(turns)
    assert all(turn.executions for turn in turns)
    assert total(turns).executions >= EXECUTIONS_MIN


@needs_atheris
@pytest.mark.parametrize("fault", variants(*FAULTS))
def test_a_fault_is_found_and_the_input_kept(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = fuzz_faulty_target(fault, tmp_path, monkeypatch)

    assert FAULTS[fault][1] in turn.failure, turn
    [kept] = (tmp_path / "crashes" / fault).iterdir()
    assert f"python tests/fuzz {fault} {kept}" in turn.failure
    assert fault == "growth" or kept.read_bytes().startswith(b"!")


def fuzz_faulty_target(fault: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Turn:
    module = folder / f"faulty_{fault}.py"
    module.write_text(FAULTY_TARGET.format(fault=FAULTS[fault][0]))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    # With this seed, found after 201 inputs, or 7 million of "growth"; on a busy machine as well.
    budget = Budget(executions=20_000_000, seed=1)
    return Campaign(folder).take_turn(fault, budget, module=module.stem)
