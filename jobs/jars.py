"""Fetch jars for Spark once, and keep them in a folder of the user.

    python -m lakemq.jobs.jars              fetch missing jars of Delta (the only step that needs a network)
    python -m lakemq.jobs.jars --print      the kept jars, comma separated, for `spark-submit --jars`
    python -m lakemq.jobs.jars s3a          the same for the jars with which Spark reads and writes S3
    python -m lakemq.jobs.jars azure        the same for Azure (ABFS)
    python -m lakemq.jobs.jars kafka        the same for Kafka, which `lakemq mirror` reads

The folder is `$LAKEMQ_JARS`, or else `lakemq/jars-<Delta's version>` in the user's cache folder. The jars of stores are
in folders within it. You may fill the folder by hand on a machine without a network; the bytes are checked whenever a
session begins, which takes 0.1 s.

Spark's own resolver fetches the jars, as for `spark.jars.packages`. This module does what that cannot: it checks the
bytes, keeps the jars where every later session finds them without a network, and leaves out what the jars depend on.
Of Delta that would be 33 jars (87 MB), most of them older copies of what Spark ships.
"""

import argparse
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

JAVA_VERSION_MIN = 17
RESOLVE_TIMEOUT_S = 300


@dataclass(frozen=True)
class Jar:
    """A file of the public Maven repository, and what its bytes must hash to."""

    organisation: str
    name: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.version}.jar"

    @property
    def coordinates(self) -> str:
        return f"{self.organisation}:{self.name}:{self.version}"


def _read_jars() -> dict[str, tuple[Jar, ...]]:
    """Return the jars that conf/jars.conf lists, by set. The package may be in a zip, or not be installed yet."""
    file = Path(__file__).parents[1] / "conf" / "jars.conf"
    sets: dict[str, tuple[Jar, ...]] = {}
    for line in __loader__.get_data(str(file)).decode().splitlines():  # type: ignore[name-defined]
        if line and not line.startswith("#"):
            name, coordinates, sha256 = line.split()
            organisation, artifact, version = coordinates.split(":")
            sets[name] = (*sets.get(name, ()), Jar(organisation, artifact, version, sha256))
    return sets


_JARS = _read_jars()
DELTA_VERSION, HADOOP_VERSION, SPARK_VERSION = (_JARS[name][0].version for name in ("delta", "s3a", "kafka"))

# The resolver names no host: `m2compatible` alone means Ivy's default, Maven Central. With `usepoms` off it
# asks for the jars and for nothing else.
IVY_SETTINGS = """\
<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""


class MissingJars(RuntimeError):
    """Jars are not where a session looks for them; no job asks a repository when it starts."""


class MissingJava(RuntimeError):
    """Spark 4 runs on Java 17 or newer; in $JAVA_HOME, or else on the path, is no `java`, or an older one."""

    def __init__(self, found: str) -> None:
        super().__init__(
            f"Spark needs Java {JAVA_VERSION_MIN} or newer, found {found}."
            " Install a JDK or JRE and put `java` on the path, or set JAVA_HOME."
        )


class JarsNotResolved(RuntimeError):
    """Spark could not bring a jar, or brought other bytes than the ones this version was tested with."""


def java_command() -> str:
    """The `java` that Spark will start, which is version 17 or newer. Raises MissingJava."""
    java_home = os.environ.get("JAVA_HOME")
    java = shutil.which(os.path.join(java_home, "bin", "java") if java_home else "java")
    if java is None:
        raise MissingJava(f"none in JAVA_HOME={java_home}" if java_home else "none on the path")
    done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    version = re.search(r'version "(\d+)', done.stderr)
    if version is None or int(version.group(1)) < JAVA_VERSION_MIN:
        first_line = (done.stderr.strip() or "no answer to -version").splitlines()[0]
        raise MissingJava(f"{java} ({first_line})")
    return java


def kept_folder() -> Path:
    """Return the folder of the jars, whether it exists or not."""
    named = os.environ.get("LAKEMQ_JARS")
    if named:
        return Path(named).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "lakemq" / f"jars-{DELTA_VERSION}"


@dataclass(frozen=True)
class JarSet:
    """Jars that are fetched and kept together.

    Attributes:
        title: names them in messages.
        jars: all of them.
        name: the word of the command that fetches them; empty: none is needed.
        subfolder: where they are in `kept_folder()`; empty: directly in it.
    """

    title: str
    jars: tuple[Jar, ...]
    name: str = ""
    subfolder: str = ""

    @property
    def folder(self) -> Path:
        """The folder of these jars, whether it exists or not."""
        return kept_folder() / self.subfolder

    def read_kept(self) -> tuple[Path, ...]:
        """Check the bytes of all jars, and return their paths. Raises MissingJars."""
        if not self._are_right():
            command = f"{sys.executable} -m lakemq.jobs.jars {self.name}".rstrip()
            raise MissingJars(f"{self.title} are not in {self.folder}, or not whole. Run: {command}")
        return tuple(self.folder / jar.file_name for jar in self.jars)

    def resolve(self) -> tuple[Path, ...]:
        """Check the bytes of all jars, fetch all if one is missing or wrong, and return the paths of all.

        If all are right, this starts no JVM and uses no network. Two processes may resolve at once: each file appears
        whole.

        Raises MissingJava, JarsNotResolved.
        """
        if not self._are_right():
            _fetch_jars(self.folder, self.jars)
        return self.read_kept()

    def _are_right(self) -> bool:
        return all(_is_right(self.folder / jar.file_name, jar) for jar in self.jars)


def _is_right(path: Path, jar: Jar) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == jar.sha256


def _fetch_jars(folder: Path, jars: Sequence[Jar]) -> None:
    """Fetch the jars into the folder, and check their bytes. Raises MissingJava, JarsNotResolved."""
    folder.mkdir(parents=True, exist_ok=True)
    # Not in `folder`, whose name may have characters that Spark takes for those of a URI.
    with tempfile.TemporaryDirectory(prefix="lakemq-jars-") as work_name:
        work = Path(work_name)
        _run_resolver(work, jars)
        for jar in jars:
            fetched = work / "jars" / f"{jar.organisation}_{jar.file_name}"
            if not _is_right(fetched, jar):
                raise JarsNotResolved(f"{jar.file_name} does not hash to the expected sha256 {jar.sha256}")
            draft = folder / f".{jar.file_name}.{os.getpid()}"
            shutil.copyfile(fetched, draft)
            draft.replace(folder / jar.file_name)


def _run_resolver(work: Path, jars: Sequence[Jar]) -> None:
    """Let spark-submit fetch the jars into `work/jars`, for a program that does nothing. A terminal shows it."""
    java_command()
    (work / "settings.xml").write_text(IVY_SETTINGS)
    (work / "nothing.py").write_text("")
    settings = {
        "spark.jars.packages": ",".join(jar.coordinates for jar in jars),
        "spark.jars.ivySettings": str(work / "settings.xml"),
        "spark.jars.ivy": str(work),
    }
    # A file of properties replaces the user's spark-defaults.conf, which may name other packages.
    (work / "properties").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    command = [_spark_submit(), "--properties-file", str(work / "properties"), str(work / "nothing.py")]
    environment = {**os.environ, "PYSPARK_DRIVER_PYTHON": sys.executable}
    shown = None if sys.stderr.isatty() else subprocess.PIPE
    try:
        done = subprocess.run(
            command, env=environment, stdout=shown, stderr=shown, text=True, timeout=RESOLVE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise JarsNotResolved(f"Spark fetched no jars in {RESOLVE_TIMEOUT_S} s") from error
    if done.returncode != 0:
        last_lines = "\n".join(f"{done.stdout or ''}{done.stderr or ''}".strip().splitlines()[-20:])
        raise JarsNotResolved(f"Spark could not bring the jars; is there a network?\n{last_lines}".rstrip())


def _spark_submit() -> str:
    """Return the path of the spark-submit that belongs to the Spark that will run."""
    spec = importlib.util.find_spec("pyspark")
    for home in (os.environ.get("SPARK_HOME"), *(spec.submodule_search_locations or () if spec else ())):
        if home and (Path(home) / "bin" / "spark-submit").is_file():
            return str(Path(home) / "bin" / "spark-submit")
    raise JarsNotResolved("There is no spark-submit; is pyspark installed whole?")


DELTA_JARS = JarSet(f"Delta's jars (version {DELTA_VERSION})", _JARS["delta"])
S3A_JARS = JarSet(f"The jars of S3A (Hadoop {HADOOP_VERSION})", _JARS["s3a"], "s3a", f"s3a-{HADOOP_VERSION}")
AZURE_JARS = JarSet(f"The jars of ABFS (Hadoop {HADOOP_VERSION})", _JARS["azure"], "azure", f"azure-{HADOOP_VERSION}")
KAFKA_JARS = JarSet(f"The jars of Kafka (Spark {SPARK_VERSION})", _JARS["kafka"], "kafka", f"kafka-{SPARK_VERSION}")


def kept_jars() -> tuple[Path, ...]:
    """Return the paths of Delta's jars, whose bytes are right. Raises MissingJars."""
    return DELTA_JARS.read_kept()


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch jars, or print where they are. Return the exit code."""
    sets = {"delta": DELTA_JARS, **{jars.name: jars for jars in (S3A_JARS, AZURE_JARS, KAFKA_JARS)}}
    parser = argparse.ArgumentParser(prog="python -m lakemq.jobs.jars", description=__doc__.splitlines()[0])
    parser.add_argument("jars", nargs="?", choices=sets, default="delta", help="which jars (%(default)s)")
    parser.add_argument("--print", action="store_true", help="print the kept jars, comma separated; fetch nothing")
    options = parser.parse_args(arguments)
    jars = sets[options.jars]
    try:
        if options.print:
            print(",".join(map(str, jars.read_kept())))
        else:
            jars.resolve()
            print(f"{jars.title} are in {jars.folder}")
    except (MissingJars, MissingJava, JarsNotResolved) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
