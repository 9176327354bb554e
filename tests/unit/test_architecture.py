"""The parts know only whom they may know, and the tree is what ARCHITECTURE.md says."""

import re
import subprocess
import sys
from pathlib import Path

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
        "torch", "llvmlite", "numba", "gradwire", "gradwire_server", "gradwire_codecs",
    },
    "gradwire_server": {"torch", "gradwire"},
    "gradwire": {
        "torch", "lightning", "pytorch_lightning", "transformers", "accelerate", "jax", "optax",
        "gradwire_server",
    },
}  # fmt: skip
"""Not even through others: looked at after importing every module of the package."""

NEEDS_TORCH = {
    "gradwire.cli.demo.model",
    "gradwire.cli.demo.report",
    "gradwire.cli.demo.train",
    "gradwire.features.optimizer_control",
    "gradwire.integrations.hosted_session",
    "gradwire.integrations.huggingface",
    "gradwire.integrations.lightning",
    "gradwire.optimizer.torch_momentum",
    "gradwire.optimizer.torch_state",
    "gradwire.target.module_tree",
    "gradwire.target.torch_buffers",
    "gradwire.target.torch_parameters",
    "gradwire.target.version_counters",
}
"""The modules that may import it, and so may those of `gradwire_codecs.cuda`."""


def modules_of(package: str) -> list[str]:
    root = REPOSITORY / PACKAGES[package]
    files = sorted((root / package).rglob("*.py"))
    names = [".".join(f.relative_to(root).with_suffix("").parts) for f in files]
    return [name.removesuffix(".__init__") for name in names]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_loads_nothing_that_it_must_not_know(package: str) -> None:
    modules = [
        m
        for m in modules_of(package)
        if m not in NEEDS_TORCH and not m.startswith("gradwire_codecs.cuda")
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

    found = [str(f) for f in REPOSITORY.glob("*/**/*.py") if ".venv" not in f.parts
             and f.name in nameless]  # fmt: skip

    assert found == []
