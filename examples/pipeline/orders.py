"""A pipeline of Spark's Declarative Pipelines: orders from a topic, their sums, and large orders into another topic.

    spark-pipelines run --spec examples/pipeline/spark-pipeline.yml --conf spark.sql.catalogImplementation=hive

Each run handles what is there and ends. The pipeline's storage keeps the progress, and LakeMQ recognises a batch that
comes again, so no order is published twice. Spark's catalog keeps the tables: a metastore as here, or that of a Connect
server. The paths in the specification are absolute, or begin where Spark runs.
"""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

SCHEMA = "id STRING, customer STRING, amount BIGINT"
spark = SparkSession.active()
PATH = str(spark.conf.get("orders.path"))


@dp.table
def orders() -> DataFrame:
    """A streaming table: each order of the topic once."""
    messages = spark.readStream.format("lakemq").option("path", PATH).option("subscribe", "orders")
    values = messages.option("startingOffsets", "earliest").load().select(F.col("value").cast("string"))
    return values.select(F.from_json("value", SCHEMA).alias("order")).select("order.*")


@dp.materialized_view
def totals() -> DataFrame:
    """The sum of each customer."""
    return spark.read.table("orders").groupBy("customer").agg(F.sum("amount").alias("amount"))


dp.create_sink("large_orders", format="lakemq", options={"path": PATH, "topic": "large_orders"})


@dp.append_flow(target="large_orders")
def publish_large_orders() -> DataFrame:
    large = spark.readStream.table("orders").where("amount >= 100")
    return large.select(F.col("customer").alias("key"), F.to_json(F.struct("*")).alias("value"))
