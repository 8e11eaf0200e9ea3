"""The wheel holds the files of the checkout, and both import under the name `lakemq`."""

import configparser
import hashlib
import json
import re
import subprocess
import sys
import sysconfig
import tarfile
import textwrap
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest
from conftest import copy_checkout
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pyspark import SparkContext

from lakemq.engine.namespace.extras import EXTRAS
from lakemq.jobs import jars
from lakemq.spark import spark_session

CHECKOUT = Path(__file__).parents[2]
PACKAGE_FOLDERS = ("conf", "engine", "jobs", "tables")
"""Folders at the root that lakemq/ holds links to."""
PACKAGES = ("lakemq", "pyspark_lakemq")
IMPORT_EVERYTHING = """
import importlib, json, os, pkgutil, runpy, sys
import lakemq
from lakemq.errors import MissingExtra

sys.argv = ["step", "--help"]
try:  # as `python -m` does
    runpy.run_module("lakemq.jobs.step", run_name="__main__", alter_sys=True)
except SystemExit as end:
    assert not end.code, end.code
for module in pkgutil.walk_packages(lakemq.__path__, "lakemq."):
    if not module.name.endswith(".__main__"):
        try:
            importlib.import_module(module.name)
        # An extra is not installed. Without grpc, PySpark even exits when Great Expectations imports its client.
        except (ModuleNotFoundError, MissingExtra, SystemExit) as missing:
            assert getattr(missing, "name", "") not in ("conf", "engine", "jobs", "tables"), module.name
names = {}
for name, module in sys.modules.items():
    if getattr(module, "__file__", None):
        names.setdefault(os.path.realpath(module.__file__), []).append(name)
print(json.dumps(names))
"""
"""Prints, in its last line, the names of all modules that the process has loaded, by file."""


def python_says(code: str, *options: str, cwd: Path, executable: str | Path = sys.executable) -> str:
    """Return what `code` prints, run by an interpreter in another process."""
    done = subprocess.run([executable, *options, "-c", code], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment with the wheel, without its requirements."""
    folder = tmp_path_factory.mktemp("fresh")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin/python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, str(wheel)], check=True)
    return python


def find_site_packages(python: Path) -> str:
    return python_says("import sysconfig; print(sysconfig.get_path('purelib'))", executable=python, cwd=python.parent)


def packed_files(wheel: Path) -> set[str]:
    """Return the names of a wheel's files, without those that describe it."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if not name.split("/")[0].endswith(".dist-info")}


@pytest.mark.extended
@pytest.mark.slow
def test_every_module_and_every_default_is_in_the_wheel(wheel: Path) -> None:
    files = [path for folder in PACKAGE_FOLDERS for path in (CHECKOUT / folder).rglob("*") if path.is_file()]
    expected = {f"lakemq/{path.relative_to(CHECKOUT)}" for path in files if "__pycache__" not in path.parts}
    for package in PACKAGES:
        expected |= {f"{package}/{path.name}" for path in (CHECKOUT / package).iterdir() if path.is_file()}
    assert packed_files(wheel) == expected


@pytest.mark.extended
@pytest.mark.slow
def test_the_source_distribution_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    """The source distribution has files where the checkout has links."""
    copy = tmp_path / "copy"
    copy_checkout(copy)
    build = "import setuptools.build_meta as backend; backend.build_{}('dist')"
    subprocess.run([sys.executable, "-c", build.format("sdist")], cwd=copy, check=True, capture_output=True)
    (archive,) = (copy / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        assert all(member.isfile() or member.isdir() for member in packed)
        packed.extractall(tmp_path)
    unpacked = tmp_path / archive.name.removesuffix(".tar.gz")
    subprocess.run([sys.executable, "-c", build.format("wheel")], cwd=unpacked, check=True, capture_output=True)
    (from_source,) = (unpacked / "dist").glob("*.whl")
    assert packed_files(from_source) == packed_files(wheel)


@pytest.mark.extended
@pytest.mark.slow
def test_the_wheel_installs_into_a_fresh_environment_and_says_hello(installed: Path, tmp_path: Path) -> None:
    """As docs/setup.md says; the packages that it needs are those of this environment, as no network is asked."""
    site = find_site_packages(installed)
    # a folder named in a .pth is searched last, and its own .pth files, such as the editable install's, are not read
    Path(site, "packages.pth").write_text(sysconfig.get_path("purelib"))
    where = python_says("import lakemq; print(lakemq.__file__)", executable=installed, cwd=tmp_path)
    assert where == f"{site}/lakemq/__init__.py"
    readme = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    (hello, *_) = re.findall(r"^```python\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE)
    assert len(python_says(hello, executable=installed, cwd=tmp_path).splitlines()) == 4
    command = [installed.parent / "lakemq", "--path", "data/shop", "fetch", "orders", "--output", "json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 1000


def test_no_page_installs_a_name_that_is_not_published() -> None:
    """`pip install 'lakemq[extra]'` adds an extra to what is installed; plain `pip install lakemq` finds nothing."""
    pages = [CHECKOUT / "README.md", *(CHECKOUT / "docs").glob("*.md")]
    wrong = re.compile(r"pip install[^\n`#]* lakemq(?![\w.\[/-])")
    assert not [page.name for page in pages if wrong.search(page.read_text(encoding="utf-8"))]


def test_editable_install_is_found_as_spark_looks_for_formats(tmp_path: Path) -> None:
    code = """
import pkgutil, importlib.util
print(*sorted(module.name for module in pkgutil.iter_modules() if "lakemq" in module.name), end=" ")
print(*(name for name in ("conf", "engine", "jobs", "tables") if importlib.util.find_spec(name)))
"""
    assert python_says(code, "-I", cwd=tmp_path) == "lakemq pyspark_lakemq"


@pytest.mark.extended
def test_public_names_are_found_before_pyarrow_is_imported(tmp_path: Path) -> None:
    code = """
import sys, lakemq
assert "pyarrow" not in sys.modules
assert {*lakemq.__all__} <= {*dir(lakemq)}
print([name for name in lakemq.__all__ if not hasattr(lakemq, name)], lakemq.Connection.__name__)
"""
    assert python_says(code, cwd=tmp_path) == "[] Connection"


@pytest.mark.extended
@pytest.mark.slow
def test_no_module_is_loaded_under_two_names() -> None:
    """In the checkout, where `import engine` would succeed."""
    names = json.loads(python_says(IMPORT_EVERYTHING, cwd=CHECKOUT).splitlines()[-1])
    modules = {file: loaded for file, loaded in names.items() if file.startswith(f"{CHECKOUT}/") and "/." not in file}
    assert len(modules) > 300
    assert [loaded for loaded in modules.values() if len(loaded) > 1 or loaded[0].split(".")[0] not in PACKAGES] == []


def read_pins(lock: str) -> dict[str, set[str]]:
    """Return the versions of each package in a lock."""
    pins: dict[str, set[str]] = {}
    for line in (CHECKOUT / lock).read_text().splitlines():
        if not line.startswith(("#", " ")):  # an indented line is a hash of the package above it
            pin = Requirement(line.removesuffix(" \\"))
            pins.setdefault(canonicalize_name(pin.name), set()).add(str(pin.specifier).removeprefix("=="))
    return pins


def test_requirements_are_pinned_within_their_ranges() -> None:
    """Airflow has an environment of its own, with the plain package."""
    setup = configparser.ConfigParser(interpolation=None)
    setup.read(CHECKOUT / "setup.cfg")
    extras, plain = {**setup["options.extras_require"]}, setup["options"]["install_requires"]
    locks = {
        "tests/airflow/requirements.lock": [plain, extras.pop("airflow")],
        "requirements.lock": [plain, *extras.values()],
    }
    wrong = []
    for lock, groups in locks.items():
        pins = read_pins(lock)
        lines = [line for group in groups for line in group.splitlines() if line and not line.startswith(("#", "%"))]
        assert len(lines) > 10
        for requirement in map(Requirement, lines):
            versions = pins[canonicalize_name(requirement.name)]
            wrong += (
                [(lock, str(requirement), versions)] if not all(map(requirement.specifier.contains, versions)) else []
            )
    assert wrong == []


def test_the_jars_fit_the_installed_spark_and_delta() -> None:
    spark_minor = ".".join(metadata.version("pyspark").split(".")[:2])
    assert jars.DELTA_JARS.jars[0].name == f"delta-spark_{spark_minor}_2.13"
    assert metadata.version("delta-spark") == jars.DELTA_VERSION
    assert metadata.version("pyspark") == jars.SPARK_VERSION


# The plain package sends, consumes and serves without any extra. Features with an extra say how to install it.

MODULES = tuple(sorted(module for modules in EXTRAS.values() for module in modules))
BLOCK = f"""
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {MODULES!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Block())
"""


def run_without_extras(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the code in a process that finds no module of any extra."""
    program = BLOCK + textwrap.dedent(code)
    return subprocess.run([sys.executable, "-c", program], cwd=cwd, capture_output=True, text=True, check=False)


def test_every_extra_has_its_packages_and_every_package_of_one_its_modules() -> None:
    setup = configparser.ConfigParser(interpolation=None)
    setup.read(CHECKOUT / "setup.cfg")
    extras = setup["options.extras_require"]
    assert {*extras} - {"test", "dev", "demo", "all"} == {*EXTRAS}
    required = setup["options"]["install_requires"]
    for extra, modules in EXTRAS.items():
        packages = {re.split(r"[<>=\-]", line)[0] for line in extras[extra].splitlines() if line and line[0] != "#"}
        names = ("apache", *(module.partition("_")[0] for module in modules))
        assert all(package.startswith(names) for package in packages)
        assert not any(re.search(rf"^{module}\b", required, re.MULTILINE) for module in modules)


@pytest.mark.extended
@pytest.mark.slow
def test_the_plain_package_sends_consumes_and_serves(tmp_path: Path) -> None:
    completed = run_without_extras(
        """
        import pyarrow as pa
        import lakemq

        with lakemq.connect("mq", create=True) as mq, mq.serving():
            mq.topics.create("t", partitions=2)
            with mq.producer() as producer:
                producer.send("t", key="a", value="1").result()
            mq.publish("t", pa.table({"value": ["2"]}))
            with mq.transaction("id") as txn:
                txn.publish("t", pa.table({"value": ["3"]}))
            with mq.consumer("g", topics=["t"], protocol="cooperative", auto_offset_reset="earliest") as consumer:
                found = []
                while len(found) < 3:
                    batch = consumer.poll(timeout_ms=1000)
                    found += [message.value for message in batch]
                    consumer.commit(batch)
            print(sorted(found), sorted(message.value for message in mq.fetch("t")))
        from lakemq.jobs import serve, step
        from lakemq.jobs.cli import app
        from typer.testing import CliRunner
        assert step.main(["--path", "mq", "--until-idle"]) == 0
        for command in (["topics", "list"], ["groups", "lag", "g"], ["doctor", "--no-spark"]):
            done = CliRunner().invoke(app, ["--path", "mq", *command])
            assert done.exit_code == 0, (command, done.output)
        """,
        tmp_path,
    )
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.startswith("[b'1', b'2', b'3'] [b'1', b'2', b'3']\n")


@pytest.mark.extended
@pytest.mark.slow
def test_modules_and_commands_that_need_an_extra_name_it(tmp_path: Path) -> None:
    completed = run_without_extras(
        """
        import importlib, json
        import lakemq, pyarrow
        from lakemq.engine.client.predicate import Predicate
        from lakemq.errors import MissingExtra
        from lakemq.jobs.cli import app
        from typer.testing import CliRunner

        calls = [
            lambda: importlib.import_module("lakemq.spark"),
            lambda: importlib.import_module("lakemq.jobs.reports.history_report"),
            lambda: Predicate("x", pyarrow.schema([])),
        ]
        for call in calls:
            try:
                print(call())
            except MissingExtra as missing:
                print(str(missing).rpartition(" ")[2])
        lakemq.connect("mq", create=True).close()
        for command in ("sql x", "spark-sql", "serve --metrics-port 0", "console", "serve --console"):
            done = CliRunner().invoke(app, ["--path", "mq", *command.split()])
            print(json.dumps([done.exit_code, done.stdout, done.stderr]))
        """,
        tmp_path,
    )
    assert completed.returncode == 0, completed.stderr
    names, refusals = completed.stdout.splitlines()[:3], completed.stdout.splitlines()[3:]
    assert names == [f"'lakemq[{extra}]'." for extra in ("spark", "report", "sql")]
    assert [json.loads(refusal) for refusal in refusals] == [
        [3, "", f"MISSING_EXTRA: {missing} is not installed. Expected pip install 'lakemq[{extra}]'.\n"]
        for missing, extra in (
            ("duckdb", "sql"),
            ("pyspark", "spark"),
            ("prometheus_client", "metrics"),
            ("uvicorn", "console"),
            ("uvicorn", "console"),
        )
    ]


# Jars are kept completely or not at all. Errors name missing jars and the command that fetches them. No JVM runs.

JAR = jars.Jar("org.example", "small", "1.0", hashlib.sha256(b"right").hexdigest())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the jars, which does not exist yet. There is one jar to keep, and Spark must not be started."""
    folder = tmp_path / "jars"
    monkeypatch.setenv("LAKEMQ_JARS", str(folder))
    monkeypatch.setattr(jars, "DELTA_JARS", replace(jars.DELTA_JARS, jars=(JAR,)))
    spark_brings(monkeypatch, None)
    return folder


def spark_brings(monkeypatch: pytest.MonkeyPatch, content: bytes | None) -> None:
    def run(work: Path, wanted: Sequence[jars.Jar]) -> None:
        assert list(wanted) == [JAR]
        assert content is not None, "Spark was asked"
        (work / "jars").mkdir()
        (work / "jars" / f"{JAR.organisation}_{JAR.file_name}").write_bytes(content)

    monkeypatch.setattr(jars, "_run_resolver", run)


def fake_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))


def test_jars_are_fetched_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark_brings(monkeypatch, b"right")
    assert jars.DELTA_JARS.resolve() == (folder / JAR.file_name,)
    spark_brings(monkeypatch, None)
    assert jars.DELTA_JARS.resolve() == jars.kept_jars() == (folder / JAR.file_name,)
    assert [path.name for path in folder.iterdir()] == [JAR.file_name]


def test_jar_with_a_wrong_hash_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark_brings(monkeypatch, b"wrong")
    with pytest.raises(jars.JarsNotResolved, match="does not hash"):
        jars.DELTA_JARS.resolve()
    assert list(folder.iterdir()) == []


def fake_spark_submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Make SPARK_HOME a folder whose spark-submit is this script. $2 is the properties file."""
    submit = tmp_path / "spark" / "bin" / "spark-submit"
    submit.parent.mkdir(parents=True)
    submit.write_text(f"#!/bin/sh\n{script}\n")
    submit.chmod(0o755)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    fake_java(tmp_path, monkeypatch, "17")


def test_resolver_asks_spark_for_the_jars_without_dependencies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_spark_submit(tmp_path, monkeypatch, f'cp "$2" {tmp_path}/seen')
    jars._run_resolver(tmp_path, jars.DELTA_JARS.jars)
    settings = dict(line.split(" ", 1) for line in (tmp_path / "seen").read_text().splitlines())
    assert settings["spark.jars.packages"] == ",".join(jar.coordinates for jar in jars.DELTA_JARS.jars)
    assert 'usepoms="false"' in Path(settings["spark.jars.ivySettings"]).read_text()


def test_jars_in_a_folder_that_was_filled_by_hand_are_accepted(folder: Path) -> None:
    folder.mkdir()
    (folder / JAR.file_name).write_bytes(b"wrong")
    with pytest.raises(jars.MissingJars):
        jars.kept_jars()
    (folder / JAR.file_name).write_bytes(b"right")
    assert jars.DELTA_JARS.resolve() == jars.kept_jars()


def test_the_command_prints_the_jars_or_what_to_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert jars.main(["--print"]) == 1
    assert f"{sys.executable} -m lakemq.jobs.jars" in capsys.readouterr().err
    spark_brings(monkeypatch, b"right")
    assert jars.main([]) == 0
    capsys.readouterr()
    assert jars.main(["--print"]) == 0
    assert capsys.readouterr().out == f"{folder / JAR.file_name}\n"


def test_older_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("1.8.0_292", "11.0.2"):
        fake_java(tmp_path / version, monkeypatch, version)
        with pytest.raises(jars.MissingJava, match=version):
            jars.java_command()


def test_a_session_without_jars_says_what_to_run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    fake_java(tmp_path, monkeypatch, "17")
    with pytest.raises(jars.MissingJars, match=r"Run: .* -m lakemq.jobs.jars"):
        spark_session(master="local[1]")
