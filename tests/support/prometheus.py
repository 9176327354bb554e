"""The real Prometheus, as Debian packages it."""

import shutil
import subprocess
from pathlib import Path

CACHE = Path(__file__).parents[2] / ".cache" / "prometheus"


def program_path(name: str) -> str:
    """Return `prometheus` or `promtool`: an installed one, or one from Debian's package.

    Unpacking needs no rights; only where apt has no list of packages yet, root has to get one.
    """
    installed = shutil.which(name)
    if installed is not None:
        return installed
    program = CACHE / "usr" / "bin" / name
    if not program.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        download = ["apt-get", "download", "--quiet", "prometheus"]
        if subprocess.run(download, cwd=CACHE, check=False, capture_output=True).returncode:
            subprocess.run(["apt-get", "update", "--quiet"], check=True, capture_output=True)
            subprocess.run(download, cwd=CACHE, check=True, capture_output=True)
        [package] = CACHE.glob("prometheus_*.deb")
        subprocess.run(["dpkg-deb", "--extract", package.name, "."], cwd=CACHE, check=True)
        package.unlink()
    return str(program)
