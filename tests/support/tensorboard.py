"""What TensorBoard reads in a folder of event files."""

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

EVERY = {"scalars": 0}
"""TensorBoard thins them out otherwise."""


def scalars_in(path: Path) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Return steps and values, by folder (which is a run to TensorBoard) and name."""
    folders = sorted({file.parent for file in path.rglob("*tfevents*")})
    return {str(folder.relative_to(path)): _scalars_of(folder) for folder in folders}


def _scalars_of(folder: Path) -> dict[str, list[tuple[int, float]]]:
    read = EventAccumulator(str(folder), size_guidance=EVERY).Reload()
    return {
        name: [(each.step, each.value) for each in read.Scalars(name)]
        for name in read.Tags()["scalars"]
    }
