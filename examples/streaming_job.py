"""A Structured Streaming job: read orders, sum them up by customer, and publish each change of a sum.

    python examples/streaming_job.py data/shop data/checkpoint     # or: spark-submit examples/streaming_job.py ...

It handles what is there and ends (`availableNow`), as a scheduled job does. Spark's checkpoint holds the progress and
the sums. If the job is killed and run again, Spark may repeat its last batch; LakeMQ recognises the batch's number and
publishes nothing twice.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import lakemq
from lakemq.spark import spark_session

SCHEMA = "id STRING, customer STRING, amount BIGINT"


def main(path: str, checkpoint: str) -> None:
    spark = spark_session()
    # the job serves itself where no `lakemq serve` does
    with lakemq.connect(path, spark=spark) as mq, mq.serving():
        mq.topics.create("totals", exist_ok=True)
        orders = (
            spark.readStream.format("lakemq")
            .option("path", path)
            .option("subscribe", "orders")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", 30)
            .load()
            .select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("order"))
            .select("order.*")
        )
        totals = orders.groupBy(F.col("customer").alias("key")).agg(F.sum("amount").cast("string").alias("value"))

        def publish_batch(batch: DataFrame, batch_id: int) -> None:
            # without on_error, rows that cannot be messages would be left out, and only the result would say so
            mq.publish("totals", batch, on_error="fail", txn_app_id=f"totals of {checkpoint}", txn_version=batch_id)
            print(f"published batch {batch_id}", flush=True)

        query = (
            totals.writeStream.foreachBatch(publish_batch)
            .outputMode("update")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
