"""`lakemq spark-sql`: Spark's SQL shell with a namespace's tables and views. It starts fast and leaves nothing behind.

By default, Spark's JVM computes for 15 s before it is ready, and as long again for the catalog: it loads classes,
compiles them for a long life, and opens one table after the other. Here the JVM compiles quickly, and an archive saves
loading classes one by one. A third of the work remains.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime
from importlib import metadata, resources
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from lakemq.engine.namespace.extras import needs
from lakemq.engine.namespace.step_reader import find_moment
from lakemq.jobs.jars import DELTA_VERSION, java_command, kept_folder, kept_jars
from lakemq.tables.storage.delta.catalog import catalog_sql

if TYPE_CHECKING:
    from lakemq.engine.namespace.namespace import Namespace

_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Java silently ignores an archive of another Java version or of other jars
_QUIET = "-Xlog:disable -Xlog:all=error:stderr"


def archive_file() -> Path:
    """Return the path of the class archive for this version of Spark and Delta."""
    return kept_folder().parent / f"spark-sql-{metadata.version('pyspark')}-{DELTA_VERSION}.jsa"


def run_spark_sql(
    namespace: Namespace, arguments: Sequence[str], archive: bool = False, as_of: int | datetime | None = None
) -> int:
    """Run `spark-sql` with these arguments in the namespace's database, and return its exit code.

    archive: keep the loaded classes for the next start. as_of: show the tables as of this step or time.

    Raises MissingExtra, MissingJars, MissingJava, StepTooOld.
    """
    home = Path(_spark_home())
    java_command()
    jars = ",".join(map(str, kept_jars()))
    with tempfile.TemporaryDirectory(prefix="lakemq-spark-sql-") as scratch:
        folder, draft = Path(scratch), archive_file().with_suffix(f".{os.getpid()}")
        for name in ("spark-defaults.conf", "log4j2.properties"):
            (folder / name).write_text(resources.files("lakemq.conf").joinpath(name).read_text(encoding="utf-8"))
        catalog = catalog_sql(namespace.path, namespace.store, find_moment(namespace.store, as_of))
        (folder / "catalog.sql").write_text(catalog, encoding="utf-8")
        settings = {
            "spark.driver.defaultJavaOptions": " ".join(_java_options(folder, draft if archive else None)),
            "spark.sql.warehouse.dir": (folder / "warehouse").as_uri(),
            "spark.sql.catalogImplementation": "in-memory",
            "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
        }
        options = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
        command = [str(home / "bin/spark-sql"), "--properties-file", str(folder / "spark-defaults.conf"), *options]
        command += ["--jars", jars, "-i", str(folder / "catalog.sql"), *arguments]
        try:
            # format("lakemq") needs the Python interpreter that has this package
            environment = {"PYSPARK_PYTHON": sys.executable, **os.environ, "SPARK_HOME": str(home)}
            done = subprocess.run(command, env=environment, check=False)
            if draft.exists():
                draft.replace(archive_file())
        finally:
            draft.unlink(missing_ok=True)
    return done.returncode


def _java_options(folder: Path, draft: Path | None) -> list[str]:
    # Hive's part of the shell leaves temporary files behind: they are deleted with the folder
    options = [_QUICK, _QUIET, f'-Djava.io.tmpdir="{folder}"']
    options.append(f"-Dlog4j2.configurationFile={(folder / 'log4j2.properties').as_uri()}")
    if draft is not None:
        return [*options, f"-XX:ArchiveClassesAtExit={draft}"]
    return [*options, f"-XX:SharedArchiveFile={archive_file()}"] if archive_file().exists() else options


def _spark_home() -> str:
    """Return the folder of this Python's Spark without importing it. Raises MissingExtra."""
    with needs("spark"):
        spec = find_spec("pyspark")
        if spec is None or not spec.submodule_search_locations:
            raise ModuleNotFoundError(name="pyspark")
    return spec.submodule_search_locations[0]
