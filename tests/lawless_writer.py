"""A writer that ignores the writer features of a Delta table, as no engine does that follows the protocol."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_ANY_WRITER = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}


@contextmanager
def ignore_protocol(table: Path) -> Iterator[str]:
    """Yield the path of a copy that any program may write. What is committed to it is then committed to the table."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / table.name
        shutil.copytree(table, copy)
        before = {path.relative_to(copy) for path in copy.rglob("*")}
        lowered = _newest_version(copy) + 1
        _entry(copy, lowered).write_text(json.dumps(_ANY_WRITER))
        yield str(copy)
        for path in [path for path in copy.rglob("*.parquet") if path.relative_to(copy) not in before]:
            shutil.copy(path, table / path.relative_to(copy))
        for version in range(lowered + 1, _newest_version(copy) + 1):
            shutil.copy(_entry(copy, version), _entry(table, version - 1))


def _newest_version(table: Path) -> int:
    return max(int(path.stem) for path in (table / "_delta_log").glob("*.json"))


def _entry(table: Path, version: int) -> Path:
    return table / "_delta_log" / f"{version:020d}.json"
