"""A Spark session that knows Delta, is quiet, and leaves nothing behind in the working folder.

What holds of every session stands in `conf/spark-defaults.conf`; here is what depends on the process: jars,
master, temporary folders. The later wins: these defaults, what `spark-submit` was given, the arguments.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from lakemq.engine.namespace.extras import needs
from lakemq.jobs.jars import MissingJars, MissingJava, java_command, kept_jars

with needs("spark"):
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

__all__ = ["MissingJars", "MissingJava", "spark_session"]

DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
CHECKPOINT_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


def spark_session(
    app_name: str = "lakemq", master: str | None = None, extra: Mapping[str, str] | None = None
) -> SparkSession:
    """The Spark session of this process, with Delta: the one that runs, as it is, or else a new one.

    master  where to run; None is what spark-submit says, or else `local[*]`
    extra   further settings; its `spark.jars` are added to Delta's

    No repository is asked. Raises MissingJars (`lakemq.jobs.jars` resolves them, beforehand) and MissingJava.
    """
    if SparkContext._active_spark_context is not None:
        return SparkSession.builder.getOrCreate()
    wished = dict(extra or {})
    if master is not None:
        wished["spark.master"] = master
    settings = _settings_under_submit(wished) if "PYSPARK_GATEWAY_PORT" in os.environ else _settings(wished)
    if "spark.pyspark.python" not in settings:
        # Workers need the driver's interpreter: `python3` on the path may be another, without pyarrow.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return SparkSession.builder.appName(app_name).config(map={**settings}).getOrCreate()


def _settings(wished: dict[str, str]) -> dict[str, str]:
    """All settings of a session whose JVM this process starts."""
    java_command()
    jars = ",".join(map(str, kept_jars()))
    scratch = _scratch_folder()
    settings = _shipped_defaults() | _local_settings(wished.get("spark.master", "local[*]"), scratch)
    if "SPARK_DRIVER_MEMORY" in os.environ:
        settings["spark.driver.memory"] = os.environ["SPARK_DRIVER_MEMORY"]
    log4j = scratch / "log4j2.properties"
    log4j.write_text(_conf_text("log4j2.properties"))
    # Not `extraJavaOptions`, which stay the caller's.
    settings["spark.driver.defaultJavaOptions"] = f"-Dlog4j2.configurationFile={log4j.as_uri()}"
    more_jars = wished.get("spark.jars")
    return settings | wished | {"spark.jars": f"{jars},{more_jars}" if more_jars else jars}


def _settings_under_submit(wished: dict[str, str]) -> dict[str, str]:
    """What to add to the settings of a JVM that spark-submit started: nothing that it was told already."""
    SparkContext._ensure_initialized()
    given = dict(SparkConf().getAll())
    more_jars = _add_delta_jars()
    if more_jars:
        wished["spark.jars"] = ",".join(filter(None, [given.get("spark.jars"), wished.get("spark.jars"), *more_jars]))
    master = (given | wished).get("spark.master", "local[*]")
    settings = _shipped_defaults() | _local_settings(master, _scratch_folder())
    return {key: value for key, value in settings.items() if key not in given} | wished


def _shipped_defaults() -> dict[str, str]:
    lines = (line.strip() for line in _conf_text("spark-defaults.conf").splitlines())
    pairs = (line.split(None, 1) for line in lines if line and not line.startswith("#"))
    return {key: value.strip() for key, value in pairs}


def _local_settings(master: str, scratch: Path) -> dict[str, str]:
    """Settings for a Spark within one machine; none for a cluster, whose own defaults know better."""
    local = re.fullmatch(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?", master)
    if local is None:
        return {}
    cores = os.cpu_count() or 1 if local.group(1) == "*" else int(local.group(1) or 1)
    return {
        "spark.master": master,
        "spark.sql.shuffle.partitions": str(cores),
        # Not in the working folder, where Spark would put it.
        "spark.sql.warehouse.dir": (scratch / "warehouse").as_uri(),
        # Spark's own choice starts a process, readlink, for every file of a checkpoint that it moves on a disk.
        "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_FILES,
        # Nobody else talks to a local driver, and the host's name may not resolve.
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }


def _add_delta_jars() -> list[str]:
    """Delta is on the classpath of the running JVM, and executors get what this returns: the kept jars, unless
    spark-submit was given Delta. Raises MissingJars.

    No setting adds to the classpath of a driver that runs; the loader that spark-submit made for its --jars does.
    """
    jvm = SparkContext._jvm
    assert jvm is not None
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        loader.loadClass(DELTA_EXTENSION)
        return []
    except Py4JJavaError:
        jars = kept_jars()
    try:
        for jar in jars:
            loader.addURL(jvm.java.io.File(str(jar)).toURI().toURL())
        loader.loadClass(DELTA_EXTENSION)
    except (Py4JError, TypeError) as error:
        command = f'spark-submit --jars "$({sys.executable} -m lakemq.jobs.jars --print)" ...'
        raise MissingJars("on the classpath that spark-submit was given", command) from error
    return [str(jar) for jar in jars]


def _scratch_folder() -> Path:
    """A new folder that goes when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="lakemq-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _conf_text(name: str) -> str:
    # Through resources, not a path: under --py-files the package lies in a zip.
    return resources.files("lakemq.conf").joinpath(name).read_text(encoding="utf-8")
