"""What the demo shows of its race."""

from pathlib import Path

from gradwire.cli.demo.display import advance_of
from gradwire.cli.demo.race import Progress, Race


def race() -> Race:
    workers = [
        Progress("0", step=100, losses=[2.0], started=1.0, now=11.0, bytes_per_second=500.0),
        Progress("1", step=110, losses=[4.0], started=1.0, now=11.0, bytes_per_second=500.0),
    ]
    return Race(steps=200, density=0.01, folder=Path(), workers=workers)


def test_workers_are_shown_together() -> None:
    shown = advance_of(race())
    assert (shown.steps, shown.total, shown.loss) == ((100.0, 110.0), 200.0, 3.0)
    assert (shown.steps_per_second, shown.remaining_seconds) == (21.0, 10.0)
    assert shown.up_bytes_per_second == 1_000.0


def test_nothing_of_them_is_shown_as_that_of_the_one_alone_before_it_has_begun() -> None:
    running = race()
    running.is_alone = True
    shown = advance_of(running)
    assert (shown.steps, shown.loss, shown.steps_per_second) == ((0.0, 0.0), None, None)
    assert (shown.up_bytes_per_second, shown.remaining_seconds) == (None, None)

    running.alone = Progress("alone", step=50, losses=[5.0], started=1.0, now=6.0)
    shown = advance_of(running)
    assert (shown.steps, shown.loss, shown.remaining_seconds) == ((50.0, 50.0), 5.0, 15.0)
