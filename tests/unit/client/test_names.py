"""What `import gradwire` offers is there, and costs nothing before it is used."""

import subprocess
import sys

import pytest

import gradwire


@pytest.mark.parametrize("name", gradwire.__all__)
def test_every_name_is_there_and_listed(name: str) -> None:
    assert getattr(gradwire, name).__name__ == name
    assert name in dir(gradwire)


def test_a_name_that_is_none_is_refused_as_by_any_module() -> None:
    with pytest.raises(AttributeError, match="'gradwire' has no attribute 'jion'"):
        getattr(gradwire, "jion")  # noqa: B009  # mypy refuses it as well


def test_the_import_alone_loads_neither_numpy_nor_a_compiler() -> None:
    code = "import sys, gradwire; assert {'numpy', 'numba'} & {*sys.modules} == set()"

    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_errors_are_there_without_an_import_of_their_own() -> None:
    code = "import gradwire; assert gradwire.errors.UsageError is gradwire.UsageError"

    subprocess.run([sys.executable, "-c", code], check=True)


def test_modules_inside_are_not_offered_once_they_are_imported() -> None:
    code = "import gradwire; gradwire.join; print(*dir(gradwire))"

    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    offered = {name for name in done.stdout.split() if not name.startswith("__")}
    assert offered == {"errors", *gradwire.__all__}
