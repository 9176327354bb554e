"""The benchmark of a slow link: what it makes of what it measures, and what it trains."""

from pathlib import Path

from benchmarks import slowlink
from benchmarks.slowlink import FULL, Training, figures_of
from benchmarks.slowlink_methods import ALONE, DENSE, GRADWIRE


def training(steps_per_second: float, loss: float, megabytes: float = 0.1) -> Training:
    """Return one of a minute, whose loss is the same all the time."""
    steps = int(FULL.seconds * steps_per_second)
    times = [(step + 1) / steps_per_second for step in range(steps)]
    return Training(steps_per_second, megabytes, times, [loss] * steps, loss, loss)


def test_aims_are_compared_with_the_best_rival(tmp_path: Path) -> None:
    rates = {ALONE: [20.0, 22.0, 99.0], GRADWIRE: [20.0, 19.0, 18.0]}
    rates |= {"powersgd-1": [9.0, 5.0, 1.0], "powersgd-4": [6.0, 6.1, 6.2]}
    long = {method: training(0.1, loss=2.0, megabytes=0.2) for method in FULL.rivals}
    long[GRADWIRE] = training(19.0, loss=0.5)
    paces = {method: [training(rate, 1.0) for rate in rates[method]] for method in rates}

    figures = figures_of(paces, long, FULL)

    best, machine = figures[:2]
    assert (best.rival, best.value, best.rival_value, best.met) == ("powersgd-4", 19.0, 6.1, True)
    assert (machine.value, machine.rival_value, machine.met) == (19.0, 22.0, True)
    assert len({(figure.figure, figure.rival) for figure in figures}) == len(figures)
    assert all(f.met and f.ratio == 0.25 for f in figures if f.figure.startswith("loss after"))
    slowlink.draw(figures, tmp_path, FULL)
    assert (tmp_path / "slow-link.png").exists()


def test_a_window_without_a_step_has_the_loss_of_the_step_before() -> None:
    slow = Training(0.04, 100.0, [25.0, 50.0], [2.0, 1.0], 1.0, 1.0)
    long = dict.fromkeys((GRADWIRE, *FULL.rivals), slow)
    paces = {method: [slow] for method in FULL.paced}

    figures = figures_of(paces, long, FULL)

    curve = [f.rival_value for f in figures if "batches" in f.figure and f.rival == DENSE]
    assert curve == [2.0, 2.0, 2.0, 2.0, 2.0, 1.0]
