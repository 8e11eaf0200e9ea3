"""A driver's program: publish, fetch and query on a namespace in a bucket, as DataFrames, streams and SQL.

Its last line says what it counted, as JSON. Credentials come from the environment of the driver alone.
"""

import json
import os
import sys

import lakemq
from lakemq.spark import spark_session

ROWS = 2_000


def main(path: str, scratch: str, keys: list[str]) -> None:
    options = {key: os.environ[key] for key in keys}
    format_options = {"path": path, **{f"storage.{key}": value for key, value in options.items()}}
    spark = spark_session()
    counted = {}
    with lakemq.connect(path, storage_options=options, spark=spark) as mq:
        rows = spark.range(0, ROWS, 1, 4).selectExpr("cast(id AS string) AS key", "cast(id AS string) AS value")
        counted["published"] = mq.publish("orders", rows).record_count
        fetched = mq.fetch("orders").to_spark()
        counted["fetched"] = fetched.select("value").distinct().count()
        print(fetched._jdf.queryExecution().toString())

        more = spark.range(ROWS, 2 * ROWS).selectExpr("cast(id AS string) AS value")
        more.write.format("lakemq").options(**format_options, topic="orders").mode("append").save()
        batch = spark.read.format("lakemq").options(**format_options, subscribe="orders").load()
        counted["batch"] = batch.select("value").distinct().count()
        print(batch._jdf.queryExecution().toString())

        # the second run begins where the checkpoint in the bucket says, and finds nothing
        for _ in range(2):
            stream = spark.readStream.format("lakemq").options(**format_options, subscribe="orders")
            stream = stream.option("startingOffsets", "earliest").load().select("key", "value")
            writer = stream.writeStream.format("lakemq").options(**format_options, topic="copied")
            writer = writer.option("checkpointLocation", f"{scratch}/checkpoint").trigger(availableNow=True)
            writer.start().awaitTermination()
        counted["streamed"] = mq.fetch("copied").to_spark().count()

        counted["topics"] = spark.sql("SELECT count(*) AS n FROM mq.topics").first().n
        spark.sql("INSERT INTO mq.inbox (topic, value) SELECT 'orders', cast('inserted' AS binary) FROM range(10)")
        counted["drained"] = mq.drain_inbox().record_count
        print(spark.sql("SET").collect())
    print(json.dumps(counted))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
