"""The optional dependencies, and the error for a missing one."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder

from ..protocol.errors import MissingExtra

EXTRAS = {
    "spark": ("pyspark", "py4j", "delta", "pandas"),
    "connect": ("pyspark", "py4j", "delta", "pandas", "grpc", "grpc_status", "google", "zstandard"),
    "sql": ("duckdb", "sqlglot"),
    "report": ("jinja2",),
    "metrics": ("prometheus_client", "starlette", "uvicorn"),
    "console": ("prometheus_client", "jinja2", "python_multipart", "starlette", "uvicorn"),
    "quality": ("great_expectations",),
    "tls": ("cryptography",),
    "schemas": ("fastavro", "jsonschema_rs", "sqlglot"),
    "tracing": ("opentelemetry",),
    "progress": ("tqdm",),
    "airflow": ("airflow",),
}
"""Each extra with the modules that it brings. setup.cfg has the packages."""


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Turn a failed import in this block into MissingExtra, which says how to install the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in EXTRAS[extra]:
            raise
        raise MissingExtra(f"{error.name} is not installed.", expected=f"pip install 'lakemq[{extra}]'") from error


@contextmanager
def hide_pandas() -> Iterator[None]:
    """Keep pyarrow from importing pandas in this block.

    pyarrow looks for pandas once, when it makes its first value, to recognize data frames. Loading it takes a third of
    a short command's time, and of the start of a stream; neither has data frames. Code that needs pandas later can
    import it. Only for processes of our own, without code of users: pyarrow never looks again, so it would refuse
    missing values of pandas.
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
            raise ModuleNotFoundError("pandas is hidden from this import", name=fullname)
