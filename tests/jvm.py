"""Quick starts of the JVMs of tests. They live for seconds, so little is compiled, and classes are archived.

    python tests/jvm.py    makes the archive, which takes half a minute, once for each environment

Without the archive, or with one of another Java, everything works the same and takes longer.
"""

import os
import sys
from pathlib import Path

ARCHIVE = Path(sys.prefix) / "spark.jsa"
VARIABLE = "JDK_JAVA_OPTIONS"
"""Every `java` of version 9 or newer reads it, and says so on stderr."""

# Java logs to stdout what the archive lacks, or why it does not fit. Spark's own scripts read a command from there.
_QUIET = "-Xlog:disable -Xlog:all=error:stderr"
_QUICK = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {_QUIET}"


def quick_start() -> None:
    """Make JVMs of this process and of its children start quickly."""
    options = f"{_QUICK} -XX:SharedArchiveFile={ARCHIVE}" if ARCHIVE.exists() else _QUICK
    os.environ[VARIABLE] = " ".join(filter(None, [os.environ.get(VARIABLE), options]))


def make_archive() -> None:
    """Archive the classes that a Spark with Delta has loaded."""
    from pyspark import SparkContext

    from lakemq.spark import spark_session

    draft = ARCHIVE.with_suffix(".draft")
    spark = spark_session(
        master="local[2]", extra={"spark.driver.extraJavaOptions": f"{_QUICK} -XX:ArchiveClassesAtExit={draft}"}
    )
    spark.sql("CREATE TABLE numbers USING delta AS SELECT id, string(id % 7) AS key FROM range(1000)")
    spark.sql("INSERT INTO numbers VALUES (1000, 'a')")
    numbers = spark.table("numbers").mapInArrow(lambda batches: batches, "id long, key string")
    numbers.join(spark.table("numbers").select("id"), "id").groupBy("key").count().orderBy("key").collect()
    stream = spark.readStream.table("numbers").writeStream.foreachBatch(lambda batch, _: batch.count())
    stream.trigger(availableNow=True).start().awaitTermination()
    gateway = SparkContext._gateway
    assert gateway is not None
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    draft.replace(ARCHIVE)


if __name__ == "__main__":
    make_archive()
