"""What `pip install lakemq` leaves out, and how it is asked for where it is missing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder

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


@contextmanager
def without_pandas() -> Iterator[None]:
    """pyarrow finds no pandas where it looks for it: once, as it makes its first value, to tell a frame from others.

    To load it takes a third of a short command, and of the start of a stream; they have no frames. Who wants pandas
    later gets it. For processes of our own alone: a Series is one to pyarrow only where it has found pandas.
    """
    sys.meta_path.insert(0, _NoPandas)
    try:
        yield
    finally:
        sys.meta_path.remove(_NoPandas)


class _NoPandas(MetaPathFinder):
    @staticmethod
    def find_spec(fullname: str, path: object = None, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is not looked for", name=fullname)
