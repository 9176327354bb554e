"""What a benchmark has measured is drawn, whether or not an aim is met."""

from pathlib import Path

from benchmarks.figures import at_least, at_most, beside, draw, reaching


def test_ratios_are_drawn_with_and_without_an_aim(tmp_path: Path) -> None:
    figures = [
        at_most("a step", 1.1, "ms", "without", 1.0, aim=1.2, runs=3),
        at_least("a rate", 5.0, "/s", "a rival", 4.0, aim=2.0, runs=3),
        reaching("a goodput", 5.0, "Gbit/s", "a rival", 4.0, aim=6.0, runs=3),
        beside("a size", 5.0, "KB", "a rival", 50.0, runs=1),
    ]

    draw("a benchmark", figures, tmp_path / "ratios.png")

    assert (tmp_path / "ratios.png").read_bytes().startswith(b"\x89PNG")
