"""`lakemq spark-sql`: Spark's shell for SQL, with a namespace's tables and views, that starts soon and leaves nothing.

A JVM of Spark's needs 15 s of work to say its first word, and the catalog as much again: classes are loaded, and
compiled for a long life, while one table after the other is opened. Here they are compiled quickly, and with an
archive are not loaded one by one: a third of the work is left.
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
from lakemq.engine.namespace.snapshot import moment_of
from lakemq.jobs.jars import DELTA_VERSION, java_command, kept_folder, kept_jars
from lakemq.tables.storage.catalog import catalog_sql

if TYPE_CHECKING:
    from lakemq.engine.namespace.namespace import Namespace

_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# an archive that is of another Java, or of other jars, is passed over in silence
_QUIET = "-Xlog:disable -Xlog:all=error:stderr"


def archive_file() -> Path:
    """Where classes are kept, for one version of Spark and of Delta."""
    return kept_folder().parent / f"spark-sql-{metadata.version('pyspark')}-{DELTA_VERSION}.jsa"


def run_spark_sql(
    namespace: Namespace, arguments: Sequence[str], archive: bool = False, as_of: int | datetime | None = None
) -> int:
    """The exit code of `spark-sql` with these arguments, in the database of the namespace, maybe as it was.

    archive: keep the classes that it has loaded in the end. Raises MissingExtra, MissingJars, MissingJava, StepTooOld.
    """
    home = Path(_spark_home())
    java_command()
    jars = ",".join(map(str, kept_jars()))
    with tempfile.TemporaryDirectory(prefix="lakemq-spark-sql-") as scratch:
        folder, draft = Path(scratch), archive_file().with_suffix(f".{os.getpid()}")
        for name in ("spark-defaults.conf", "log4j2.properties"):
            (folder / name).write_text(resources.files("lakemq.conf").joinpath(name).read_text(encoding="utf-8"))
        catalog = catalog_sql(namespace.path, namespace.store, moment_of(namespace.store, as_of))
        (folder / "catalog.sql").write_text(catalog, encoding="utf-8")
        settings = {
            "spark.driver.defaultJavaOptions": " ".join(_java_options(folder, draft if archive else None)),
            "spark.sql.warehouse.dir": (folder / "warehouse").as_uri(),
            "spark.sql.catalogImplementation": "in-memory",
            "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
        }
        said = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
        command = [str(home / "bin/spark-sql"), "--properties-file", str(folder / "spark-defaults.conf"), *said]
        command += ["--jars", jars, "-i", str(folder / "catalog.sql"), *arguments]
        try:
            # a format of Python's is read by the Python that has it
            environment = {"PYSPARK_PYTHON": sys.executable, **os.environ, "SPARK_HOME": str(home)}
            done = subprocess.run(command, env=environment, check=False)
            if draft.exists():
                draft.replace(archive_file())
        finally:
            draft.unlink(missing_ok=True)
    return done.returncode


def _java_options(folder: Path, draft: Path | None) -> list[str]:
    # what Hive's part of the shell puts among temporary files stays there: it goes with the folder
    options = [_QUICK, _QUIET, f'-Djava.io.tmpdir="{folder}"']
    options.append(f"-Dlog4j2.configurationFile={(folder / 'log4j2.properties').as_uri()}")
    if draft is not None:
        return [*options, f"-XX:ArchiveClassesAtExit={draft}"]
    return [*options, f"-XX:SharedArchiveFile={archive_file()}"] if archive_file().exists() else options


def _spark_home() -> str:
    """Of the Spark that this Python has: its folder, without loading it. Raises MissingExtra."""
    with needs("spark"):
        found = find_spec("pyspark")
        if found is None or not found.submodule_search_locations:
            raise ModuleNotFoundError(name="pyspark")
    return found.submodule_search_locations[0]
