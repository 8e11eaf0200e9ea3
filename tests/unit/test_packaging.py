"""The wheel holds the files of the checkout, and both import under the name `lakemq`."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from conftest import copy_checkout
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lakemq.jobs import jars

CHECKOUT = Path(__file__).parents[2]
PACKAGE_FOLDERS = ("conf", "engine", "jobs", "tables")
"""Folders at the root that lakemq/ holds links to."""

PACKAGES = ("lakemq", "pyspark_lakemq")

IMPORT_EVERYTHING = """
import importlib, json, os, pkgutil, runpy, sys
import lakemq
from lakemq.errors import MissingExtra

sys.argv = ["docs", "--check"]
try:  # as `python -m` does
    runpy.run_module("lakemq.jobs.docs", run_name="__main__", alter_sys=True)
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


@pytest.mark.extended
@pytest.mark.slow
def test_users_get_the_types_of_the_installed_wheel(installed: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    assert Path(find_site_packages(installed), "lakemq/py.typed").exists()
    program.write_text("""
import lakemq

mq: lakemq.Connection = lakemq.connect('data/mq')
mq.topics.create(7)
reveal_type(mq)
reveal_type(mq.consumer('g', topics=['t']))
reveal_type(mq.consumer('g', topics=['t'], protocol='classic'))
reveal_type(mq.consumer('g', assign=['t']))
reveal_type(lakemq.errors.NotLeader)
""")
    mypy = [
        sys.executable,
        "-m",
        "mypy",
        "--ignore-missing-imports",
        "--python-executable",
        str(installed),
        str(program),
    ]
    done = subprocess.run(mypy, cwd=tmp_path, capture_output=True, text=True, check=False)
    wrong, *revealed, _ = done.stdout.splitlines()
    assert 'Argument 1 to "create" of "Topics" has incompatible type "int"; expected "str"' in wrong
    names = [line.rpartition(".")[2].partition('"')[0] for line in revealed]
    assert names == ["Connection", "QueueConsumer", "GroupConsumer", "AssignedConsumer", "NotLeader"]


def test_no_page_installs_a_name_that_is_not_published() -> None:
    """`pip install 'lakemq[extra]'` adds an extra to what is installed; plain `pip install lakemq` finds nothing."""
    pages = [CHECKOUT / "README.md", *(CHECKOUT / "docs").glob("*.md")]
    wrong = re.compile(r"pip install[^\n`#]* lakemq(?![\w.\[/-])")
    assert not [page.name for page in pages if wrong.search(page.read_text(encoding="utf-8"))]


@pytest.mark.extended
@pytest.mark.slow
def test_the_wheel_copied_to_zip_imports(wheel: Path, tmp_path: Path) -> None:
    archive = tmp_path / "lakemq.zip"
    shutil.copy(wheel, archive)
    # -I and -S: no working folder, no environment, no .pth file, so not the editable install either.
    code = f"""
import sys
sys.path.insert(0, {str(archive)!r})
sys.path.append({sysconfig.get_path("purelib")!r})
import lakemq.engine
from importlib import resources
assert "spark.sql.extensions" in resources.files("lakemq.conf").joinpath("spark-defaults.conf").read_text()
print(lakemq.engine.__file__)
"""
    assert python_says(code, "-I", "-S", cwd=tmp_path) == f"{archive}/lakemq/engine/__init__.py"


def test_installed_package_imports_by_its_full_name_alone(tmp_path: Path) -> None:
    code = f"""
import importlib.util
import lakemq.engine
for name in {PACKAGE_FOLDERS!r}:
    spec = importlib.util.find_spec(name)
    assert spec is None or not spec.origin.startswith({str(CHECKOUT)!r}), spec
print(lakemq.engine.__file__)
"""
    assert python_says(code, cwd=tmp_path).endswith("engine/__init__.py")


def test_editable_install_is_found_as_spark_looks_for_formats(tmp_path: Path) -> None:
    code = """
import pkgutil, importlib.util
print(*sorted(module.name for module in pkgutil.iter_modules() if "lakemq" in module.name), end=" ")
print(*(name for name in ("conf", "engine", "jobs", "tables") if importlib.util.find_spec(name)))
"""
    assert python_says(code, "-I", cwd=tmp_path) == "lakemq pyspark_lakemq"


def test_public_names_exist_before_connect(tmp_path: Path) -> None:
    code = """
import sys, lakemq
assert "pyarrow" not in sys.modules
assert {*lakemq.__all__} <= {*dir(lakemq)}
print([name for name in lakemq.__all__ if not hasattr(lakemq, name)], lakemq.Connection.__name__)
"""
    assert python_says(code, cwd=tmp_path) == "[] Connection"


@pytest.mark.slow
def test_no_module_is_loaded_under_two_names() -> None:
    """In the checkout, where `import engine` would succeed."""
    names = json.loads(python_says(IMPORT_EVERYTHING, cwd=CHECKOUT).splitlines()[-1])
    modules = {file: loaded for file, loaded in names.items() if file.startswith(f"{CHECKOUT}/") and "/." not in file}
    assert len(modules) > 400
    assert [loaded for loaded in modules.values() if len(loaded) > 1 or loaded[0].split(".")[0] not in PACKAGES] == []


def test_no_job_file_shadows_the_standard_library() -> None:
    assert not {path.stem for path in (CHECKOUT / "jobs").glob("*.py")} & sys.stdlib_module_names


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
