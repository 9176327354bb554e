"""The parts know only whom they may know, and the tree is what ARCHITECTURE.md says."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final

import pytest

REPOSITORY = Path(__file__).parents[2]

PACKAGES = {
    "gradwire_protocol": "protocol",
    "gradwire_codecs": "protocol",
    "gradwire_udp": "protocol",
    "gradwire_server": "server",
    "gradwire": "client",
}

MUST_NOT_LOAD = {
    "gradwire_protocol": {
        "asyncio", "llvmlite", "numba", "torch",
        "gradwire", "gradwire_server", "gradwire_codecs", "gradwire_udp",
    },
    "gradwire_codecs": {
        "asyncio", "torch", "msgpack",
        "gradwire", "gradwire_server", "gradwire_protocol", "gradwire_udp",
    },
    "gradwire_udp": {
        "torch", "llvmlite", "numba", "kazoo", "dns",
        "gradwire", "gradwire_server", "gradwire_codecs",
    },
    "gradwire_server": {"torch", "kazoo", "dns", "gradwire"},
    "gradwire": {
        "torch", "lightning", "pytorch_lightning", "transformers", "accelerate", "jax", "optax",
        "kazoo", "dns", "gradwire_server",
    },
}  # fmt: skip
"""Not even through others: looked at after importing every module of the package."""

NEEDS_TORCH = {
    "gradwire.cli.demo.model",
    "gradwire.cli.demo.report",
    "gradwire.cli.demo.train",
    "gradwire.features.loaded_parameters",
    "gradwire.features.optimizer_control",
    "gradwire.integrations.accelerate",
    "gradwire.integrations.hosted_session",
    "gradwire.integrations.huggingface",
    "gradwire.integrations.lightning",
    "gradwire.optimizer.torch_averaged",
    "gradwire.optimizer.torch_momentum",
    "gradwire.optimizer.torch_scale",
    "gradwire.optimizer.torch_state",
    "gradwire.target.module_tree",
    "gradwire.target.torch_buffers",
    "gradwire.target.torch_parameters",
    "gradwire.target.version_counters",
}
"""The modules that may import it, and so may those of `WITH_FRAMEWORKS`."""

WITH_FRAMEWORKS: Final = ("gradwire_codecs.device", "gradwire.spark")
"""What is for users of a framework alone, and imports it."""


LAYERS = {
    "gradwire_protocol": """
        messages connection recovery congestion security delivery wire crypto
        counters settings removed errors limits
    """,
    "gradwire_codecs": "warm_up policies device feedback replica format kernels errors arrays",
    "gradwire_udp": """
        tcp udp drivers endpoint_driver accepting timers counters discovery sockets process files
    """,
    "gradwire_server": """
        daemon http relaying standby runs master replica checkpoints state series log trunks metrics
        config updates
    """,
    "gradwire": """
        __main__ metrics integrations spark cli
        session threads features participant replica worker optimizer target settings errors
    """,
}
"""What stands in each package, from top to bottom: an import leads down, or stays where it is."""

ENTRIES_MAX: Final = 15
"""Modules and folders in one folder: more than that nobody reads from end to end."""


def modules_of(package: str) -> list[str]:
    root = REPOSITORY / PACKAGES[package]
    files = sorted((root / package).rglob("*.py"))
    names = [".".join(f.relative_to(root).with_suffix("").parts) for f in files]
    return [name.removesuffix(".__init__") for name in names]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_loads_nothing_that_it_must_not_know(package: str) -> None:
    modules = [
        m for m in modules_of(package) if m not in NEEDS_TORCH and not m.startswith(WITH_FRAMEWORKS)
    ]
    code = f"import sys, {', '.join(modules)}; print(*sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    allowed_by_libraries = {"asyncio"} if package == "gradwire_codecs" else set()
    assert loaded & MUST_NOT_LOAD[package] - allowed_by_libraries == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_bans_the_imports_it_must_not_have(package: str) -> None:
    rules = (REPOSITORY / PACKAGES[package] / package / "ruff.toml").read_text(encoding="utf-8")

    banned = set(re.findall(r'^"([\w.]+)"\.msg', rules, re.MULTILINE))

    others = {name for name in MUST_NOT_LOAD[package] if name.startswith("gradwire")}
    assert others <= banned


def test_no_folder_of_parts_is_a_package_itself() -> None:
    """`import server.gradwire_server` would load a second copy of everything."""
    for folder in ("client", "protocol", "server"):
        assert not (REPOSITORY / folder / "__init__.py").exists()


def test_no_file_is_named_for_lack_of_a_name() -> None:
    nameless = {"utils.py", "helpers.py", "common.py", "misc.py"}

    found = [str(f) for f in REPOSITORY.glob("*/**/*.py")
             if f.name in nameless and not {".venv", ".cache"} & set(f.parts)]  # fmt: skip

    assert found == []


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_lead_down(package: str) -> None:
    """Those within functions and those for types alone count as well."""
    layers = LAYERS[package].split()

    up = [
        f"{module} imports {imported}"
        for module, imports in imports_of(package).items()
        for imported in imports
        if layers.index(layer_of(module)) > layers.index(layer_of(imported))
    ]

    assert {layer_of(module) for module in imports_of(package)} == set(layers)
    assert up == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_modules_import_each_other_in_a_circle(package: str) -> None:
    try:
        TopologicalSorter(imports_of(package)).prepare()
    except CycleError as circle:
        pytest.fail(" imports ".join(reversed(circle.args[1])))


@pytest.mark.parametrize("package", PACKAGES)
def test_a_folder_can_be_read_from_end_to_end(package: str) -> None:
    root = REPOSITORY / PACKAGES[package] / package
    folders = {file.parent for file in root.rglob("*.py")}

    entries = {
        str(folder.relative_to(REPOSITORY)): [
            each.name
            for each in folder.iterdir()
            if (each.suffix == ".py" or each in folders) and each.stem != "__init__"
        ]
        for folder in folders
    }

    assert {name: found for name, found in entries.items() if len(found) > ENTRIES_MAX} == {}


def layer_of(module: str) -> str:
    """Return the folder or the module of a package's root that a module is in."""
    return module.split(".")[1]


@cache
def imports_of(package: str) -> dict[str, set[str]]:
    """Return by module which others of its package it imports.

    A package itself is left out: `gradwire_codecs` gives its users names of modules at its bottom.
    """
    root = REPOSITORY / PACKAGES[package]
    modules = {module for module in modules_of(package) if module != package}
    found = {}
    for module in modules:
        file = root / Path(*module.split("."))
        source = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
        imported = set(imported_names(ast.parse(source.read_text(encoding="utf-8"))))
        found[module] = {
            name if name in modules else name.rpartition(".")[0]
            for name in imported
            if name in modules or name.rpartition(".")[0] in modules
        } - {module}
    return found


def imported_names(tree: ast.Module) -> Iterator[str]:
    """Return what a module imports, a name of another module with that module before it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
