"""Quality: the gate checks rows before they are published, and the audit checks what is stored.

Great Expectations is imported here, on first use: the import takes seconds, and the package is optional.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING

from ...namespace.extras import needs

if TYPE_CHECKING:
    from great_expectations.data_context import EphemeralDataContext

_CONNECT = "pyspark.sql.connect"


def import_great_expectations() -> ModuleType:
    """Import and return the package. Raises MissingExtra."""
    with needs("quality"), _hide_spark_connect():
        import great_expectations
    return great_expectations


def create_ephemeral_context() -> EphemeralDataContext:
    """Return a context that shows no progress, leaves no files behind and sends no statistics. Raises MissingExtra."""
    gx = import_great_expectations()
    from great_expectations.data_context.types.base import (
        DataContextConfig,
        InMemoryStoreBackendDefaults,
        ProgressBarsConfig,
    )

    # otherwise it leaves a temporary folder for docs behind
    stores = InMemoryStoreBackendDefaults(init_temp_docs_sites=False)
    bars = ProgressBarsConfig(globally=False)
    config = DataContextConfig(store_backend_defaults=stores, progress_bars=bars, analytics_enabled=False)
    return gx.get_context(project_config=config, mode="ephemeral")


@contextmanager
def _hide_spark_connect() -> Iterator[None]:
    """Hide Spark Connect from Great Expectations.

    Great Expectations imports it if it can. The import ends a process that has no main module: `python -c`, or workers.
    """
    if _CONNECT in sys.modules:
        yield
        return
    sys.modules[_CONNECT] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[_CONNECT]
