"""How full a disk is: the figures are those of the file system, and little room is a finding."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from lakemq.jobs.state.free_space import FreeSpace, describe_free_space, read_free_space
from lakemq.tables.storage.object_stores.files import LocalFiles

GB = 1 << 30
ROOMY = FreeSpace(size_bytes=100 * GB, free_bytes=60 * GB, inodes=1_000_000, free_inodes=900_000)


def test_the_figures_are_those_of_the_disk(tmp_path: Path) -> None:
    space = read_free_space(LocalFiles(str(tmp_path)))
    assert space is not None
    done = subprocess.run(["df", "-B1", "--output=used,avail,pcent", tmp_path], capture_output=True, check=True)
    used_bytes, free_bytes, percent = (int(figure.strip(b"%")) for figure in done.stdout.split()[-3:])
    assert abs(space.size_bytes - used_bytes - free_bytes) < GB
    assert abs(space.free_bytes - free_bytes) < GB
    assert abs(100 * space.full_share - percent) < 2, "df rounds up"


@pytest.mark.parametrize(
    ("space", "is_low"),
    [
        (ROOMY, False),
        (replace(ROOMY, free_bytes=4 * GB), True),
        (replace(ROOMY, size_bytes=1000 * GB, free_bytes=6 * GB), False),
        (replace(ROOMY, free_inodes=100), True),
        (replace(ROOMY, inodes=0, free_inodes=0), False),
        (FreeSpace(4 << 20, 3 << 20, 0, 0), False),
        (FreeSpace(4 << 20, 0, 0, 0), True),
    ],
)
def test_little_room_is_low(space: FreeSpace, is_low: bool) -> None:
    assert space.is_low == is_low


def test_the_text_has_the_share_and_the_bytes() -> None:
    assert describe_free_space(ROOMY) == "40% full, 60 GB of 100 GB free"
    large = replace(ROOMY, size_bytes=1_010 * GB, free_bytes=1_005 * GB)
    assert describe_free_space(large) == "0% full, 1005 GB of 1010 GB free"
    assert describe_free_space(replace(ROOMY, free_inodes=100)).endswith("and room for only 100 more files")
