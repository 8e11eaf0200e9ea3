"""Trace context of the driver's span in the headers of a DataFrame's rows."""

import pytest
from opentelemetry import trace
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakemq.engine.client.connection import Connection

OTHER = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.extended
def test_rows_of_a_dataframe_name_the_span_and_keep_theirs(mq: Connection, spark: SparkSession, topic: str) -> None:
    mq.topics.create(topic)
    rows = [("a", None), ("b", [("own", bytearray(b"1"))]), ("c", [("traceparent", bytearray(OTHER))])]
    df = spark.createDataFrame(rows, "value string, headers array<struct<key:string,value:binary>>").coalesce(1)
    with trace.use_span(trace.NonRecordingSpan(trace.SpanContext(7, 8, False))):
        mq.publish(topic, df)
        mq.publish(topic, df.select("value", F.col("headers").alias("h")).limit(1), headers="h")
        mq.publish(topic, df.select("value").limit(1))
    own = ("traceparent", b"00-" + b"7".zfill(32) + b"-" + b"8".zfill(16) + b"-00")
    expected = [(own,), (("own", b"1"), own), (("traceparent", OTHER),), (own,), (own,)]
    assert [message.headers for message in mq.fetch(topic)] == expected
