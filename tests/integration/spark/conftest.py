"""A cluster of Spark for each module of tests."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: make frameworks")

if shutil.which("java") is None:
    pytest.skip("no Java: apt-get install openjdk-17-jre-headless", allow_module_level=True)

from pyspark.sql import DataFrame, SparkSession

from support.spark import cluster, digits

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let Spark's own warnings be: it leaves sockets to the garbage collector."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with cluster(tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.fixture(scope="module")
def data(spark: SparkSession) -> DataFrame:
    return digits(spark)
