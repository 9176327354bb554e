"""The example of the documentation trains, on the cluster that is there.

It ends that when it is done, so the test is one of the last (`conftest.py`).
"""

import logging
import re
import runpy
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "spark_digits.py"

ACCURACY_MIN = 0.9


def test_the_example_learns_and_says_where_it_can_be_watched(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE)])
    caplog.set_level(logging.INFO)

    runpy.run_path(str(EXAMPLE), run_name="__main__")

    said = capsys.readouterr().out
    accuracy = re.search(r"^held out: loss [\d.]+, accuracy ([\d.]+)$", said, re.MULTILINE)
    assert accuracy is not None, said
    assert float(accuracy[1]) > ACCURACY_MIN
    assert re.search(r"http://127\.0\.0\.1:\d+/", caplog.text)
