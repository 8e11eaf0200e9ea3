"""Fetch jars for Spark once, and keep them in a folder of the user.

    python -m lakemq.jobs.jars              fetch missing jars of Delta (the only step that needs a network)
    python -m lakemq.jobs.jars --print      the kept jars, comma separated, for `spark-submit --jars`
    python -m lakemq.jobs.jars s3a          the same for the jars with which Spark reads and writes S3
    python -m lakemq.jobs.jars azure        the same for Azure (ABFS)

The folder is `$LAKEMQ_JARS`, or else `lakemq/jars-<Delta's version>` in the user's cache folder. The jars of stores are
in folders within it. You may fill the folder by hand on a machine without a network; the bytes are checked whenever a
session begins, which takes 0.1 s.

Spark's own resolver fetches the jars, as for `spark.jars.packages`. This module does what that cannot: it checks the
bytes, keeps the jars where every later session finds them without a network, and leaves out what the jars depend on.
Of Delta that would be 33 jars (87 MB), most of them older copies of what Spark ships.
"""

from __future__ import annotations

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

DELTA_VERSION = "4.4.0"
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


# Found by experiment: these two serve all that Delta does on path tables and on Spark's own catalog (MERGE,
# OPTIMIZE, VACUUM, streams, clones, change feed, deletion vectors, v2 checkpoints). Its kernel and Unity
# Catalog jars are for tables of a Unity Catalog, and for `spark.databricks.delta.v2.enableMode = STRICT`.
DELTA_JARS = JarSet(
    f"Delta's jars (version {DELTA_VERSION})",
    (
        Jar(
            "io.delta",
            "delta-spark_4.2_2.13",
            DELTA_VERSION,
            "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
        ),
        Jar(
            "io.delta",
            "delta-storage",
            DELTA_VERSION,
            "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
        ),
    ),
)


# Jars of stores. hadoop-aws depends on a bundle of all services of Amazon, which is 686 MB. These are the parts of it
# that S3A uses, 13 MB. Those of ABFS have under 2 MB. Spark has their other dependencies: Netty, an HTTP client, SLF4J.


HADOOP_VERSION = "3.5.0"
"""The version of Hadoop that Spark ships. Its connectors must have the same."""

SDK_VERSION = "2.35.4"
"""The version of Amazon's SDK that this Hadoop was built with."""

_SDK_PARTS = {
    "annotations": "6f36bd87155d1dd85d6efbdd29e532e3759a022211feb71affebee1aa34f04b8",
    "apache-client": "6eade21b482724ed0a4613eaa95d20e47e7a81304bd28538ac427fece94a7740",
    "arns": "c63cc29f76a8527e9e10b621703163df541dc5cb315508dc2898518602c75380",
    "auth": "6b601323004833fb4a857ffc95db4795e0e6320eb93e64b1246c655c9ff04994",
    "aws-core": "fdb5fc8f1a48d97fa7d04d3460fb42f6973c7b1bbe1b9d317871ef0162bcb623",
    "aws-query-protocol": "9b4cf9b78977cc9f5b4ceae9c435dedbde6a055a0f8d9e053eaca945715e2a9f",
    "aws-xml-protocol": "4f59176da2522c357b1993e4a890fde529f12f365795ef86269bde4a3984cd0d",
    "checksums": "94464af4374d08ecf33ca06ed4d03e1615529e547726e26b56abacefbeee7948",
    "checksums-spi": "88b5af85ac2d3c862be8856be4e683ab31932e4a5a3c1c45af864d2671ac7cec",
    "crt-core": "2c6aaa17bf9ccbb9d962dded4351e73decb197e3c5519970e0dae17e05d3df62",
    "endpoints-spi": "ef02441bda916959b8341290b49c68cc35538e1ad6f8629b75d8334dc6653e00",
    "http-auth": "3ec933a06e751a05e195eb3589209e23c44e1897263b6fcae34ef4cc63cd4491",
    "http-auth-aws": "c4acb92fdec90bfd9b67bfab8e41b69cd152c03cacc10281a8ab464791856e01",
    "http-auth-aws-eventstream": "709107552f302be3fa9e05969a3779f5c0f07fb809e6fa1fa571a6f0c61326dd",
    "http-auth-spi": "4495463406bb98eb136f2c3f3604ed5f08ec9974ebc3f34f2121b20679f61d5c",
    "http-client-spi": "728be89b2a07b595edb0adee3a2cbbbdd4cb1f4caddde0d08c3979fe2620dedb",
    "identity-spi": "188d73db7d4e2361654bc3c5a1b3eaeb445d0500fb012cc46c5d67975adf97bf",
    "json-utils": "80d67a6bb3e7eb49c7d4b6e4ba4c1463ed7da0192b795158328602dc131c5ecc",
    "metrics-spi": "c2a4ee90a21081317e2e6eba0c414d05d3d518aed2f86b1c1710a7367b450487",
    "netty-nio-client": "b82f8b33e5c85273a47da45ede884d7ccb31c9c2f69e6910a76c5c48fa1275dc",
    "profiles": "0f4ef7ca72ccd80dd49ebeaf7f3ce60a7d7a00da59a91aeeae6e91052bbacbd8",
    "protocol-core": "f2532eca6ba2142fe4821d5decb03c83a3e15dc8bfae2240e7f2efa75f9868b5",
    "regions": "77eae87b34ce96ecdf916a9bc06684dbeafcb6d38ef0513285fa5d5d6d41f5ca",
    "retries": "f99fb2f8c66d7e859955b3542d3af8f9de8f23a21d5e3250f0f2c5f18487e469",
    "retries-spi": "668638751d059c527ddd41ffa4dcebe36a7c14860ed56776df09b861c14dc7dd",
    "s3": "f23532c5223be9b0bfec0d72837ed09ed34dbdf8022818ba145b20076a78b4bc",
    "s3-transfer-manager": "0eec78870b3d0abc509a847072cf963cb2ae6e360dc6161a9449b3398c470476",
    "sdk-core": "fa559a4ce598852f3519c8f3b36250f583b0858a7611eedc4a81997778c617f4",
    "sts": "8d0f7816d3f96e3f00249f5d054d926e939a104bcf9ef57676ee0b16c59684d2",
    "third-party-jackson-core": "32f4252c6c2df8f3a4aff885e6dc77024ad6b4cb48455d07b461ec30c41643ea",
    "utils": "642aeef536a071668f0b772f05f9d21573abf6955e7b6fb5fdb893760cca10e8",
    "utils-lite": "e004806def5e22ec98edc48a133ff3317166255e1ba29d93d129e9fdfa64a7be",
}
"""Part of the SDK -> SHA-256 of its jar: all that S3, STS and the transfer manager depend on."""

S3A_JARS = JarSet(
    f"The jars of S3A (Hadoop {HADOOP_VERSION})",
    (
        Jar(
            "org.apache.hadoop",
            "hadoop-aws",
            HADOOP_VERSION,
            "66bd9eefb938b1a1657487324b63c13df2d8b17164a1dd24e0ef37b905bc5baa",
        ),
        Jar(
            "org.reactivestreams",
            "reactive-streams",
            "1.0.4",
            "f75ca597789b3dac58f61857b9ac2e1034a68fa672db35055a8fb4509e325f28",
        ),
        Jar(
            "software.amazon.eventstream",
            "eventstream",
            "1.0.1",
            "0c37d8e696117f02c302191b8110b0d0eb20fa412fce34c3a269ec73c16ce822",
        ),
        Jar(
            "software.amazon.s3.analyticsaccelerator",
            "analyticsaccelerator-s3",
            "1.3.1",
            "4959a9747cbb479c73c3ffbcd479bee5b014f8b2880994585a8693fb9d24675e",
        ),
        *(Jar("software.amazon.awssdk", name, SDK_VERSION, sha256) for name, sha256 in _SDK_PARTS.items()),
    ),
    "s3a",
    f"s3a-{HADOOP_VERSION}",
)

AZURE_JARS = JarSet(
    f"The jars of ABFS (Hadoop {HADOOP_VERSION})",
    (
        Jar(
            "org.apache.hadoop",
            "hadoop-azure",
            HADOOP_VERSION,
            "220b5db238b82437960e4b81c7e3eefa4eff2a03ad502887497f11d0ad86e663",
        ),
        # hadoop-azure names its classes where it opens connections with TLS
        Jar(
            "org.wildfly.openssl",
            "wildfly-openssl",
            "2.2.5.Final",
            "71fb7932f99a727edb23c5a2cb8c6855ac7196fad41aa0669b3998e277165154",
        ),
    ),
    "azure",
    f"azure-{HADOOP_VERSION}",
)


def kept_jars() -> tuple[Path, ...]:
    """Return the paths of Delta's jars, whose bytes are right. Raises MissingJars."""
    return DELTA_JARS.read_kept()


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch jars, or print where they are. Return the exit code."""
    sets = {"delta": DELTA_JARS, S3A_JARS.name: S3A_JARS, AZURE_JARS.name: AZURE_JARS}
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
