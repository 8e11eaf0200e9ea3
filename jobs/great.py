"""Great Expectations, imported once it is used: it takes seconds, and not everybody has it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from lakemq.engine.namespace.extras import needs

_CONNECT = "pyspark.sql.connect"


def great_expectations() -> ModuleType:
    """The package. Raises MissingExtra."""
    with needs("quality"), _without_connect():
        import great_expectations
    return great_expectations


@contextmanager
def _without_connect() -> Iterator[None]:
    """It looks for Spark Connect, which ends the process where that has no main module: in `python -c`, in workers."""
    if _CONNECT in sys.modules:
        yield
        return
    sys.modules[_CONNECT] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[_CONNECT]
