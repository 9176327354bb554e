"""`FinishedRuns`: knows a run again that was finished here, and takes no other one for it."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol.messages.admission import Join
from gradwire_protocol.messages.layout import Layout, Tensor
from gradwire_server.state.finished_runs import ENDED_RUNS_MAX, FinishedRuns
from gradwire_server.state.run import Run
from support.peer import join_request, resume_of

LAYOUT = Layout((Tensor("weights", (6,)),))


def run_with(versions: dict[int, int], name: str = "alpha", *, finished: bool = True) -> Run:
    run = Run.begin(name, join_request(layout=LAYOUT))
    run.relay.versions.update(versions)
    run.finished = finished
    return run


def ended(*runs: Run) -> FinishedRuns:
    found = FinishedRuns()
    for run in runs:
        found.note(run)
    return found


def back(rank: int, sequence: int, versions: dict[int, int], kept_from: int | None = None) -> Join:
    resume = resume_of(rank, sequence, versions, kept_from=kept_from)
    return join_request(run="alpha", layout=LAYOUT, resume=resume)


def test_a_run_that_was_not_finished_is_not_over() -> None:
    assert ended(run_with({0: 9}, finished=False)).find(back(1, 0, {0: 7})) is None


def test_another_run_is_not_taken_for_one_that_was_finished() -> None:
    runs = ended(run_with({0: 9, 1: 4}))

    others = [
        back(1, 4, {0: 10}),  # an update that the run never had
        back(1, 9, {0: 7}),  # all have 9 updates of it
        back(1, 9, {0: 7}, 6),  # or 5
        replace(back(1, 4, {0: 7}), run="beta"),
        join_request(run="alpha", layout=LAYOUT),  # is new
        replace(back(1, 4, {0: 7}), layout=Layout((Tensor("weights", (7,)),))),
    ]

    assert [runs.find(other) for other in others] == [None] * len(others)


def test_the_oldest_gives_way_and_all_can_be_forgotten() -> None:
    runs = ended(*[run_with({0: 1}, f"run{i}") for i in range(ENDED_RUNS_MAX + 1)])
    requests = [replace(back(0, 1, {}), run=f"run{i}") for i in (0, 1, ENDED_RUNS_MAX)]

    assert len(runs) == ENDED_RUNS_MAX
    assert [runs.find(request) for request in requests] == [None, "run1", f"run{ENDED_RUNS_MAX}"]
    runs.clear()
    assert [runs.find(request) for request in requests] == [None] * 3


VERSIONS = st.dictionaries(st.integers(0, 3), st.integers(1, 20), max_size=4)


@given(
    final=VERSIONS, missed=st.dictionaries(st.integers(0, 3), st.integers(0, 20)), data=st.data()
)
def test_whoever_was_part_of_it_is_known_whatever_it_missed(
    final: dict[int, int], missed: dict[int, int], data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, 3))
    seen = {r: max(s - missed.get(r, 0), 0) for r, s in final.items() if r != rank}
    accepted = final.get(rank, 0)
    sequence = data.draw(st.integers(accepted, accepted + 5))
    first_kept = data.draw(st.integers(1, accepted + 1))

    runs = ended(run_with(final))

    assert runs.find(back(rank, sequence, seen, first_kept)) == "alpha"
