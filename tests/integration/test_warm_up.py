"""``gradwire warm-up``: what is compiled beforehand is found by every process of this Python."""

import os
import sys
from pathlib import Path

import pytest

from gradwire.cli.app import main
from gradwire_codecs.kernels import compiled
from support.processes import completed, python
from support.wording import naming

PROBE = """
import sys
sys.prefix = sys.argv[1]
from gradwire_codecs import warm_up
from gradwire_codecs.kernels.compiled import KERNELS
warm_up()
print(sum(sum(kernel.stats.cache_misses.values()) for kernel in KERNELS))
"""
"""Says how many kernels had to be compiled, in a Python that is installed elsewhere."""


def nowhere(folder: Path) -> dict[str, str]:
    """Return an environment in which no folder for machine code can be written to."""
    (folder / "file").touch()
    place = str(folder / "file" / "folder")
    return {**os.environ, "HOME": place, "XDG_CACHE_HOME": place, "NUMBA_CACHE_DIR": place}


@pytest.mark.deep("compiles all kernels")
@pytest.mark.parametrize("cpu", ["native", "generic"])
def test_after_it_no_user_of_this_python_compiles_anything(
    tmp_path: Path,
    cpu: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    kind = "this processor" if cpu == "native" else compiled.portable_name()

    assert main(["warm-up", "--system", "--cpu", cpu]) == 0

    folder = tmp_path / "share" / "gradwire" / "kernels"
    assert capsys.readouterr().out == naming("ready for", kind, folder, " s")
    said = completed(python(PROBE, str(tmp_path)), env=nowhere(tmp_path))
    assert (said.returncode, said.stdout) == (0, "0\n"), said.stderr


def test_for_this_user_it_is_ready_at_once_where_it_was_compiled_before(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["warm-up"]) == 0
    assert capsys.readouterr().out == naming("ready for this processor", compiled.cache_folder())


def test_a_processor_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["warm-up", "--system", "--cpu", "no-such"]) == 2
    assert capsys.readouterr().err == naming("compiling failed")


def test_a_folder_that_belongs_to_somebody_else_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "share").touch()  # where a folder would have to be
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr("gradwire.cli.warm_up._compile", lambda environ: None)

    assert main(["warm-up", "--system"]) == 2

    assert capsys.readouterr().err == naming(tmp_path / "share", "owner", "--system")
