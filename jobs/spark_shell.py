"""`lakemq spark-sql`: Spark's SQL shell with a namespace's tables and views. It starts fast and leaves nothing behind.

By default, Spark's JVM computes for 15 s before it is ready, and as long again for the catalog: it compiles classes for
a long life. Here it compiles quickly.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from lakemq.engine.namespace.extras import needs
from lakemq.engine.namespace.step_reader import find_moment
from lakemq.jobs.jars import java_command, kept_jars
from lakemq.tables.storage.delta.catalog import catalog_sql

if TYPE_CHECKING:
    from lakemq.engine.namespace.namespace import Namespace

_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_QUIET = "-Xlog:disable -Xlog:all=error:stderr"


def run_spark_sql(namespace: Namespace, arguments: Sequence[str], as_of: int | datetime | None = None) -> int:
    """Run `spark-sql` with these arguments in the namespace's database, and return its exit code.

    as_of: show the tables as of this step or time.

    Raises MissingExtra, MissingJars, MissingJava, StepTooOld.
    """
    home = Path(_spark_home())
    java_command()
    jars = ",".join(map(str, kept_jars()))
    with tempfile.TemporaryDirectory(prefix="lakemq-spark-sql-") as scratch:
        folder = Path(scratch)
        for name in ("spark-defaults.conf", "log4j2.properties"):
            (folder / name).write_text(resources.files("lakemq.conf").joinpath(name).read_text(encoding="utf-8"))
        catalog = catalog_sql(namespace.path, namespace.store, find_moment(namespace.store, as_of))
        (folder / "catalog.sql").write_text(catalog, encoding="utf-8")
        settings = {
            "spark.driver.defaultJavaOptions": " ".join(_java_options(folder)),
            "spark.sql.warehouse.dir": (folder / "warehouse").as_uri(),
            "spark.sql.catalogImplementation": "in-memory",
            "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
        }
        options = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
        command = [str(home / "bin/spark-sql"), "--properties-file", str(folder / "spark-defaults.conf"), *options]
        command += ["--jars", jars, "-i", str(folder / "catalog.sql"), *arguments]
        # format("lakemq") needs the Python interpreter that has this package
        environment = {"PYSPARK_PYTHON": sys.executable, **os.environ, "SPARK_HOME": str(home)}
        return subprocess.run(command, env=environment, check=False).returncode


def _java_options(folder: Path) -> list[str]:
    # Hive's part of the shell leaves temporary files behind: they are deleted with the folder
    options = [_QUICK, _QUIET, f'-Djava.io.tmpdir="{folder}"']
    return [*options, f"-Dlog4j2.configurationFile={(folder / 'log4j2.properties').as_uri()}"]


def _spark_home() -> str:
    """Return the folder of this Python's Spark without importing it. Raises MissingExtra."""
    with needs("spark"):
        spec = find_spec("pyspark")
        if spec is None or not spec.submodule_search_locations:
            raise ModuleNotFoundError(name="pyspark")
    return spec.submodule_search_locations[0]
