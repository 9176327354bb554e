"""The benchmarks, by name.

Each is a module with these, and is imported only when it is to run:

``Plan``
    A frozen dataclass of how much is measured: counts, sizes, seconds. Where a master and workers
    take part, its field `keys` says whether they have keys.
``FULL``, ``QUICK``
    The plan whose figures are quoted, and one that takes seconds and goes the same ways.
``run(plan)``
    Measures; returns figures.
``draw(figures, folder, plan)``
    Draws them for the documentation, where it shows them.
``with_options(plan, arguments)``
    Returns a plan that options of its own have changed, where it has any.
"""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from benchmarks.figures import Figure
from benchmarks.programs import TESTS


@dataclass(frozen=True)
class Benchmark:
    """One of them."""

    module_name: str
    paths: Sequence[str]
    """Of what it measures, from the repository's root; a folder stands for all that is in it."""

    @property
    def measured(self) -> Sequence[str]:
        """What its figures depend on: what it measures, and how."""
        path = Path("tests", *self.module_name.split("."))
        alone = path.parent.name == "benchmarks"
        return *self.paths, str(path.with_suffix(".py") if alone else path.parent)

    @property
    def description(self) -> str:
        """The first line of what the module says of itself, read without importing it."""
        path = Path(TESTS, *self.module_name.split(".")).with_suffix(".py")
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        assert text is not None
        return text.partition("\n")[0]

    @cached_property
    def module(self) -> ModuleType:
        """What it consists of."""
        return import_module(self.module_name)

    @property
    def has_keyless_form(self) -> bool:
        """Whether it can be measured with keys and without."""
        return any(field.name == "keys" for field in fields(self.module.FULL))

    @property
    def has_drawing(self) -> bool:
        """Whether the documentation shows a drawing of it."""
        return hasattr(self.module, "draw")

    def plan(self, *, quick: bool, keys: bool) -> Any:
        """Return what to measure: with keys or without, where that can be chosen."""
        plan = self.module.QUICK if quick else self.module.FULL
        return replace(plan, keys=keys) if self.has_keyless_form else plan

    @property
    def has_options(self) -> bool:
        """Whether it has options of its own."""
        return hasattr(self.module, "with_options")

    def with_options(self, plan: Any, arguments: Sequence[str]) -> Any:
        """Return a plan as changed by options of its own."""
        return self.module.with_options(plan, arguments)

    def run(self, plan: Any) -> list[Figure]:
        """Measure."""
        figures: list[Figure] = self.module.run(plan)
        return figures

    def draw(self, figures: list[Figure], folder: Path, plan: Any) -> None:
        """Draw for the documentation."""
        self.module.draw(figures, folder, plan)


CODECS: Final = ("protocol/gradwire_codecs",)
CODEC: Final = (*CODECS, "tests/benchmarks/codec_dense.py", "tests/benchmarks/codec_memory.py")
TRANSPORT: Final = ("protocol/gradwire_protocol", "protocol/gradwire_udp")
MASTER: Final = ("protocol", "server")
PRODUCT: Final = ("protocol", "server", "client")

BENCHMARKS: Final[Mapping[str, Benchmark]] = {
    "attack": Benchmark("benchmarks.attack", MASTER),
    "badlinks": Benchmark("benchmarks.badlinks", TRANSPORT),
    "codec": Benchmark("benchmarks.codec", CODEC),
    "codec-size": Benchmark("benchmarks.codec_size", (*CODECS, "client/gradwire/cli/demo")),
    "convergence": Benchmark("benchmarks.convergence.comparison", PRODUCT),
    "defaults": Benchmark("benchmarks.defaults.comparison", PRODUCT),
    "latency": Benchmark("benchmarks.latency", MASTER),
    "lossy": Benchmark("benchmarks.lossy", TRANSPORT),
    "modes": Benchmark("benchmarks.modes", PRODUCT),
    "overhead": Benchmark("benchmarks.overhead", PRODUCT),
    "recovery": Benchmark("benchmarks.recovery", PRODUCT),
    "relay": Benchmark("benchmarks.relay", MASTER),
    "scale": Benchmark("benchmarks.scale", MASTER),
    "sealed": Benchmark("benchmarks.sealed", TRANSPORT),
    "slowlink": Benchmark("benchmarks.slowlink", PRODUCT),
    "spark": Benchmark("benchmarks.spark", PRODUCT),
    "start": Benchmark("benchmarks.start", PRODUCT),
    "time-to-loss": Benchmark("benchmarks.time_to_loss.comparison", PRODUCT),
    "transport": Benchmark("benchmarks.transport", TRANSPORT),
    "watching": Benchmark("benchmarks.watching", MASTER),
}
