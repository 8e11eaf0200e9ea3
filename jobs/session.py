"""Make a Spark session with Delta that logs little and leaves nothing in the working folder.

`conf/spark-defaults.conf` has the settings of every session. This module adds those that depend on the process: jars,
master, temporary folders. The later wins: these defaults, the settings of `spark-submit`, the arguments.
"""

import atexit
import logging
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from lakemq.engine.namespace.extras import needs
from lakemq.jobs.jars import DELTA_JARS, MissingJars, MissingJava, java_command, kept_jars

with needs("spark"):
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql.utils import is_remote

    from lakemq.engine.client.format.source import register

__all__ = ["MissingJars", "MissingJava", "spark_session"]

DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
CHECKPOINT_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


def spark_session(
    app_name: str = "lakemq", master: str | None = None, extra: Mapping[str, str] | None = None
) -> SparkSession:
    """Return the Spark session of this process, with Delta and format("lakemq"): the running one, or a new one.

    A running session keeps its settings; only the format is registered. So it is with a session of Spark Connect, which
    is one where $SPARK_REMOTE names a server. No repository is contacted.

    Args:
        app_name: Name of the application.
        master: Spark's master. None: the one of spark-submit, or else `local[*]`.
        extra: Further settings. Its `spark.jars` are added to Delta's.

    Raises:
        MissingJars: Delta's jars are not on this machine. `python -m lakemq.jobs.jars` fetches them.
        MissingJava: There is no Java, or it is too old.
    """
    if SparkContext._active_spark_context is not None or is_remote() or "SPARK_REMOTE" in os.environ:
        return _with_format(SparkSession.builder.getOrCreate())
    custom = dict(extra or {})
    if master is not None:
        custom["spark.master"] = master
    settings = _settings_under_submit(custom) if "PYSPARK_GATEWAY_PORT" in os.environ else _settings(custom)
    if "spark.pyspark.python" not in settings:
        # Workers need the driver's interpreter: `python3` on the path may be a different one, without pyarrow.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return _with_format(SparkSession.builder.appName(app_name).config(map={**settings}).getOrCreate())


def silence_error_logs() -> None:
    """Silence what pyspark logs of an error before it raises it: values, and a stack trace per column."""
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _with_format(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


def _settings(custom: dict[str, str]) -> dict[str, str]:
    """Return all settings of a session whose JVM this process starts."""
    java_command()
    jars = ",".join(map(str, kept_jars()))
    scratch = _scratch_folder()
    settings = _shipped_defaults() | _local_settings(custom.get("spark.master", "local[*]"), scratch)
    if "SPARK_DRIVER_MEMORY" in os.environ:
        settings["spark.driver.memory"] = os.environ["SPARK_DRIVER_MEMORY"]
    log4j = scratch / "log4j2.properties"
    log4j.write_text(_conf_text("log4j2.properties"))
    # Not `extraJavaOptions`, which belong to the caller.
    settings["spark.driver.defaultJavaOptions"] = f"-Dlog4j2.configurationFile={log4j.as_uri()}"
    more_jars = custom.get("spark.jars")
    return settings | custom | {"spark.jars": f"{jars},{more_jars}" if more_jars else jars}


def _settings_under_submit(custom: dict[str, str]) -> dict[str, str]:
    """Return the settings to add to those of a JVM that spark-submit started."""
    SparkContext._ensure_initialized()
    submitted = dict(SparkConf().getAll())
    more_jars = _add_delta_jars()
    if more_jars:
        custom["spark.jars"] = ",".join(
            filter(None, [submitted.get("spark.jars"), custom.get("spark.jars"), *more_jars])
        )
    master = (submitted | custom).get("spark.master", "local[*]")
    settings = _shipped_defaults() | _local_settings(master, _scratch_folder())
    return {key: value for key, value in settings.items() if key not in submitted} | custom


def _shipped_defaults() -> dict[str, str]:
    lines = (line.strip() for line in _conf_text("spark-defaults.conf").splitlines())
    pairs = (line.split(None, 1) for line in lines if line and not line.startswith("#"))
    return {key: value.strip() for key, value in pairs}


def _local_settings(master: str, scratch: Path) -> dict[str, str]:
    """Return settings for Spark on one machine; none for a cluster, which has its own defaults."""
    local = re.fullmatch(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?", master)
    if local is None:
        return {}
    cores = os.cpu_count() or 1 if local.group(1) == "*" else int(local.group(1) or 1)
    return {
        "spark.master": master,
        "spark.sql.shuffle.partitions": str(cores),
        # By default Spark puts it into the working folder.
        "spark.sql.warehouse.dir": (scratch / "warehouse").as_uri(),
        # Spark's default starts a process (readlink) for every checkpoint file that it renames.
        "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_FILES,
        # A local driver needs no other address, and the host's name may not resolve.
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }


def _add_delta_jars() -> list[str]:
    """Put Delta on the classpath of the running JVM, and return the jars that executors need.

    Returns nothing if spark-submit brought Delta. No setting extends the classpath of a running driver; the class
    loader that spark-submit made for its --jars does.

    Raises MissingJars.
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
        raise MissingJars(f"{DELTA_JARS.title} are not on the classpath of spark-submit. Run: {command}") from error
    return [str(jar) for jar in jars]


def _scratch_folder() -> Path:
    """Create a folder that is deleted when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="lakemq-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _conf_text(name: str) -> str:
    # Through resources, not a path: with --py-files the package is in a zip.
    return resources.files("lakemq.conf").joinpath(name).read_text(encoding="utf-8")
