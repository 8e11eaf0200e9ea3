"""What `pip install lakemq` leaves out, and how it is asked for where it is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..protocol.errors import MissingExtra

EXTRAS = {
    "spark": ("pyspark", "py4j", "delta", "pandas"),
    "sql": ("duckdb", "sqlglot"),
    "report": ("plotly",),
    "quality": ("great_expectations",),
    "airflow": ("airflow",),
}
"""Each with the modules that it brings; setup.cfg has the packages."""


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """What is imported within comes with this extra. Raises MissingExtra, which says how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in EXTRAS[extra]:
            raise
        raise MissingExtra(f"{error.name} is not installed.", expected=f"pip install 'lakemq[{extra}]'") from error
