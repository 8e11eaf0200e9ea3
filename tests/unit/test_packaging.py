"""What is in the checkout is in the wheel, and both import under the name `lakemq`."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lakemq.jobs import jars

CHECKOUT = Path(__file__).parents[2]
PACKAGE_FOLDERS = ("conf", "engine", "jobs", "tables")


def python_says(code: str, *options: str, cwd: Path, executable: str | Path = sys.executable) -> str:
    """Return what `code` prints, run by an interpreter in another process."""
    done = subprocess.run([executable, *options, "-c", code], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.extended
@pytest.mark.slow
def test_every_module_and_every_default_is_in_the_wheel(wheel: Path) -> None:
    files = [path for folder in PACKAGE_FOLDERS for path in (CHECKOUT / folder).rglob("*") if path.is_file()]
    files += CHECKOUT.glob("*.py")
    wanted = {f"lakemq/{path.relative_to(CHECKOUT)}" for path in files if "__pycache__" not in path.parts}
    wanted.add("lakemq/py.typed")
    wanted |= {str(path.relative_to(CHECKOUT)) for path in (CHECKOUT / "pyspark_lakemq").glob("*.py")}
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if not name.split("/")[0].endswith(".dist-info")}
    assert packed == wanted


@pytest.mark.extended
@pytest.mark.slow
def test_the_wheel_installs_into_a_fresh_environment_and_says_hello(wheel: Path, tmp_path: Path) -> None:
    """As docs/setup.md says; the packages that it needs are those of this environment, as no network is asked."""
    fresh = tmp_path / "fresh"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", fresh], check=True)
    python = fresh / "bin/python"
    site = python_says("import sysconfig; print(sysconfig.get_path('purelib'))", executable=python, cwd=tmp_path)
    # a folder named in a .pth is searched last, and its own .pth files, such as the editable install's, are not read
    Path(site, "packages.pth").write_text(sysconfig.get_path("purelib"))
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, str(wheel)], check=True)
    where = python_says("import lakemq; print(lakemq.__file__)", executable=python, cwd=tmp_path)
    assert where == f"{site}/lakemq/__init__.py"
    readme = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    (hello, *_) = re.findall(r"^```python\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE)
    assert len(python_says(hello, executable=python, cwd=tmp_path).splitlines()) == 4
    command = [fresh / "bin/lakemq", "--path", "data/shop", "fetch", "orders", "--output", "json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 1000


@pytest.mark.extended
@pytest.mark.slow
def test_users_get_the_types_of_the_installed_wheel(wheel: Path, tmp_path: Path) -> None:
    fresh, program = tmp_path / "fresh", tmp_path / "program.py"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", fresh], check=True)
    python = fresh / "bin/python"
    site = python_says("import sysconfig; print(sysconfig.get_path('purelib'))", executable=python, cwd=tmp_path)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, str(wheel)], check=True)
    assert Path(site, "lakemq/py.typed").exists()
    program.write_text("import lakemq\n\nmq = lakemq.connect('data/mq')\nmq.topics.create(7)\nreveal_type(mq)\n")
    mypy = [sys.executable, "-m", "mypy", "--ignore-missing-imports", "--python-executable", str(python), str(program)]
    done = subprocess.run(mypy, cwd=tmp_path, capture_output=True, text=True, check=False)
    wrong, revealed, _ = done.stdout.splitlines()
    assert 'Argument 1 to "create" of "Topics" has incompatible type "int"; expected "str"' in wrong
    assert 'Revealed type is "lakemq.engine.client.connection.Connection"' in revealed


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


def test_the_installed_package_imports_from_any_folder_and_no_short_name_does(tmp_path: Path) -> None:
    code = f"""
import importlib.util
import lakemq.engine
for name in {PACKAGE_FOLDERS!r}:
    spec = importlib.util.find_spec(name)
    assert spec is None or not spec.origin.startswith({str(CHECKOUT)!r}), spec
print(lakemq.engine.__file__)
"""
    assert python_says(code, cwd=tmp_path).endswith("engine/__init__.py")


def test_no_job_file_shadows_the_standard_library() -> None:
    assert not {path.stem for path in (CHECKOUT / "jobs").glob("*.py")} & sys.stdlib_module_names


@pytest.mark.parametrize("environment", ["requirements.lock", "requirements-airflow.lock"])
def test_every_requirement_is_pinned_within_its_range(environment: str) -> None:
    """Airflow has an environment of its own, with the plain package."""
    pins: dict[str, set[str]] = {}
    for line in (CHECKOUT / environment).read_text().splitlines():
        if not line.startswith(("#", " ")):  # an indented line is a hash of the package above it
            pin = Requirement(line.removesuffix(" \\"))
            pins.setdefault(canonicalize_name(pin.name), set()).add(str(pin.specifier).removeprefix("=="))
    setup = configparser.ConfigParser(interpolation=None)
    setup.read(CHECKOUT / "setup.cfg")
    extras = {**setup["options.extras_require"]}
    of_airflow = extras.pop("airflow")
    asked = [of_airflow] if "airflow" in environment else extras.values()
    groups = [setup["options"]["install_requires"], *asked]
    lines = [line for group in groups for line in group.splitlines() if line and not line.startswith(("#", "%"))]
    assert len(lines) > 10
    for requirement in map(Requirement, lines):
        versions = pins[canonicalize_name(requirement.name)]
        assert all(map(requirement.specifier.contains, versions)), f"{requirement}: {versions}"


def test_the_jars_fit_the_installed_spark_and_delta() -> None:
    spark_minor = ".".join(metadata.version("pyspark").split(".")[:2])
    assert jars.JARS[0].name == f"delta-spark_{spark_minor}_2.13"
    assert metadata.version("delta-spark") == jars.DELTA_VERSION
