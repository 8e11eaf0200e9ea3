"""Great Expectations, imported once it is used: it takes seconds, and not everybody has it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING

from lakemq.engine.namespace.extras import needs

if TYPE_CHECKING:
    from great_expectations.data_context import EphemeralDataContext

_CONNECT = "pyspark.sql.connect"


def great_expectations() -> ModuleType:
    """The package. Raises MissingExtra."""
    with needs("quality"), _without_connect():
        import great_expectations
    return great_expectations


def context_in_memory() -> EphemeralDataContext:
    """A context that shows no progress and leaves no file behind. Raises MissingExtra."""
    gx = great_expectations()
    from great_expectations.data_context.types.base import (
        DataContextConfig,
        InMemoryStoreBackendDefaults,
        ProgressBarsConfig,
    )

    # else it makes a temporary folder for docs, and leaves it there
    stores = InMemoryStoreBackendDefaults(init_temp_docs_sites=False)
    config = DataContextConfig(store_backend_defaults=stores, progress_bars=ProgressBarsConfig(globally=False))
    return gx.get_context(project_config=config, mode="ephemeral")


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
