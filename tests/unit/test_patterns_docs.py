"""The programs of docs/patterns.md run as they stand, one after the other, and print what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

pytestmark = [pytest.mark.slow, pytest.mark.extended]

PAGE = (Path(__file__).parents[2] / "docs" / "patterns.md").read_text(encoding="utf-8")


def read_blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_the_programs_print_what_the_page_says(tmp_path: Path) -> None:
    program = "\n".join([*read_blocks("python"), "mq.close()"])
    completed = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False
    )
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout == "".join(read_blocks("text"))
    assert len(read_blocks("text")) == 4


def test_of_two_merges_at_once_one_is_refused(tmp_path: Path) -> None:
    """The page relies on this: otherwise a lost member and its successor could both insert a batch."""
    rows = pa.table({"topic_id": [1, 1], "partition": [0, 0], "offset": [0, 1]})
    DeltaTable.create(tmp_path / "orders", schema=rows.schema)
    same = "t.topic_id = s.topic_id AND t.partition = s.partition AND t.offset = s.offset"
    first, second = (DeltaTable(tmp_path / "orders") for _ in range(2))
    for table in (first, second):
        merge = table.merge(rows, predicate=same, source_alias="s", target_alias="t").when_not_matched_insert_all()
        if table is first:
            merge.execute()
        else:
            with pytest.raises(CommitFailedError):
                merge.execute()
    assert DeltaTable(tmp_path / "orders").to_pyarrow_table().num_rows == 2
