"""The example of the documentation trains on a cluster that it starts itself."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "spark_digits.py"

ACCURACY_MIN = 0.9


def test_the_example_learns_and_writes_its_page(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    accuracy = re.search(r"^held out: loss [\d.]+, accuracy ([\d.]+)$", done.stdout, re.MULTILINE)
    assert accuracy is not None, done.stdout
    assert float(accuracy[1]) > ACCURACY_MIN
    assert "<h2>Time line</h2>" in (tmp_path / "spark_digits.html").read_text(encoding="utf-8")
