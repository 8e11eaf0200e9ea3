"""What the store fails with, as errors that a user knows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from lakemq.tables.storage.store import NewerTable, NotATable

from ..protocol.errors import NewerFormat, StorageError


@contextmanager
def store_errors(what: str = "A table or file cannot be read or written.") -> Iterator[None]:
    """Raises StorageError, NewerFormat. what: that which could not be done."""
    try:
        yield
    except FileNotFoundError as gone:
        raise StorageError("A file that a table needs is gone: put it back.", found=str(gone)) from gone
    except NewerTable as error:
        raise NewerFormat(str(error)) from error
    except (OSError, NotATable) as error:
        # delta-rs paints a tree of causes over several lines
        text = " ".join(re.sub(r"\x1b\[\d*m|↳", " ", str(error)).split())
        raise StorageError(what, found=text) from error
