"""What `import gradwire` offers is there, and costs nothing before it is used."""

import subprocess
import sys

import pytest

import gradwire


@pytest.mark.parametrize("name", gradwire.__all__)
def test_every_name_is_there_and_listed(name: str) -> None:
    assert getattr(gradwire, name).__name__ == name
    assert name in dir(gradwire)


def test_the_import_alone_loads_neither_numpy_nor_a_compiler() -> None:
    code = "import sys, gradwire; assert {'numpy', 'numba'} & {*sys.modules} == set()"

    subprocess.run([sys.executable, "-c", code], check=True)
