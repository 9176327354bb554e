"""One cluster of Spark for all tests that need no other one, with a server of Spark Connect."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: make frameworks")

if shutil.which("java") is None:
    pytest.skip("no Java: apt-get install openjdk-17-jre-headless", allow_module_level=True)

from pyspark.sql import DataFrame, SparkSession

from support import spark_connect
from support.spark import cluster, digits

HERE = Path(__file__).parent

END_THE_CLUSTER = ("test_example.py", "test_limits.py")
"""Last, in this order."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let Spark's own warnings be: it leaves sockets to the garbage collector."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("default"))
    last = [HERE / name for name in END_THE_CLUSTER]
    items.sort(key=lambda item: last.index(item.path) + 1 if item.path in last else 0)


@pytest.fixture(scope="session")
def cluster_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where the cluster writes: the event log, what executors keep, tables."""
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="session")
def spark(cluster_folder: Path) -> Iterator[SparkSession]:
    with cluster(cluster_folder, **spark_connect.SETTINGS) as session:
        yield session


@pytest.fixture(scope="session")
def data(spark: SparkSession) -> DataFrame:
    return digits(spark)


@pytest.fixture(scope="session")
def training(data: DataFrame) -> DataFrame:
    return data.where("not held_out")


@pytest.fixture(scope="session")
def held_out(data: DataFrame) -> DataFrame:
    return data.where("held_out").persist()
