"""What is in the checkout is in the wheel, and both import under the name `lakemq`."""

from __future__ import annotations

import configparser
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


def python_says(code: str, *options: str, cwd: Path) -> str:
    """What `code` prints, run by this interpreter in another process."""
    done = subprocess.run([sys.executable, *options, "-c", code], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_every_module_and_every_default_is_in_the_wheel(wheel: Path) -> None:
    files = [path for folder in PACKAGE_FOLDERS for path in (CHECKOUT / folder).rglob("*") if path.is_file()]
    files += CHECKOUT.glob("*.py")
    wanted = {f"lakemq/{path.relative_to(CHECKOUT)}" for path in files if "__pycache__" not in path.parts}
    wanted |= {str(path.relative_to(CHECKOUT)) for path in (CHECKOUT / "pyspark_lakemq").glob("*.py")}
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if not name.split("/")[0].endswith(".dist-info")}
    assert packed == wanted


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


@pytest.mark.parametrize("environment", ["constraints.txt", "constraints-airflow.txt"])
def test_every_requirement_is_pinned_within_its_range(environment: str) -> None:
    """Airflow has an environment of its own, with the plain package."""
    pins: dict[str, set[str]] = {}
    for line in (CHECKOUT / environment).read_text().splitlines():
        if not line.startswith("#"):
            pin = Requirement(line)
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
