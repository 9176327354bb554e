"""A server of Spark Connect in a cluster that tests have started.

A process that has a `SparkContext` cannot be a client; `support.spark_connect_client` is one.
"""

from typing import Final

from pyspark.sql import SparkSession

HOST: Final = "127.0.0.1"

SETTINGS: Final = {
    "spark__plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark__connect__grpc__binding__address": HOST,
    "spark__connect__grpc__binding__port": "0",  # a free one
    "spark__executor__cores": "1",  # `workersPerNode` divides them
}
"""Of `support.spark.cluster`."""


def address_of(spark: SparkSession) -> str:
    """Return the address of the server in a cluster with `SETTINGS`."""
    services = spark.sparkContext._jvm.org.apache.spark.sql.connect.service
    service = getattr(getattr(services, "SparkConnectService$"), "MODULE$")
    return f"sc://{HOST}:{service.localPort()}"
