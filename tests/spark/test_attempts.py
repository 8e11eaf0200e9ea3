"""A task that fails after it wrote leaves a stray file, and no message twice."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

CODE = """
import sys
from pathlib import Path
import lakemq
from lakemq.engine.client.publish import spark as publish_spark
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.publish.executor import WriteMessages
from lakemq.engine.namespace import open_namespace
from lakemq.spark import spark_session

path = sys.argv[1]
spark = spark_session(master="local[2,3]")


class Fails(WriteMessages):
    # dies after its file is there, as a task does whose executor is lost before the driver hears of it
    def __call__(self, batches):
        from pyspark import TaskContext

        written = list(super().__call__(batches))
        if TaskContext.get().attemptNumber() == 0:
            raise OSError("the first attempt of every task fails")
        yield from written


publish_spark.WriteMessages = Fails
with Connection(open_namespace(path, create=True), spark) as mq, mq.serving():
    mq.topics.create("t", partitions=3)
    df = spark.range(0, 4000, 1, 4).selectExpr("cast(id AS string) AS key", "cast(id AS string) AS value")
    done = mq.publish("t", df)
    values = [int(m.value) for m in mq.fetch("t")]
files = list(Path(path, "messages").glob("*.parquet"))
print(sum(u.record_count for u in done.units), len(values), len(set(values)), len(files))
"""


def test_tasks_that_fail_once_publish_once(tmp_path: Path) -> None:
    script = tmp_path / "attempts.py"
    script.write_text(textwrap.dedent(CODE))
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "mq")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    published, fetched, distinct, files = map(int, done.stdout.split())
    assert published == fetched == distinct == 4000
    assert files == 8  # every task left one behind
