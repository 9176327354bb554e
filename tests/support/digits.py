"""Handwritten digits, 8 x 8 pixels each: scikit-learn's, without scikit-learn.

They are read from its files: importing it takes longer than most of what is done with them.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


def load_digits() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return 1,797 images, pixels from 0 to 16, one a row, and which digits they are."""
    spec = find_spec("sklearn")
    assert spec is not None, "scikit-learn is installed with the tools of development"
    assert spec.submodule_search_locations is not None
    [folder] = spec.submodule_search_locations
    table: npt.NDArray[Any] = np.loadtxt(
        Path(folder, "datasets", "data", "digits.csv.gz"), delimiter=","
    )
    return table[:, :-1], table[:, -1].astype(np.int64)
