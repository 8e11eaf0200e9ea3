"""How full the disk of a namespace is: for the doctor, `lakemq status`, the console and the metrics."""

from __future__ import annotations

import os
from dataclasses import dataclass

from lakemq.jobs.output import format_size
from lakemq.tables.storage.object_stores.files import Files, LocalFiles

_LOW_SHARE = 0.05
_LOW_BYTES = 5 << 30
"""A disk is low below both: a twentieth of a large disk still lasts for long, and a small disk may be meant to be."""

_LOW_INODES_SHARE = 0.02


@dataclass(frozen=True)
class FreeSpace:
    """Room of the file system that holds a namespace, as its user may take it.

    Attributes:
        size_bytes: taken and free bytes, as `df` counts them: without blocks that are kept for root.
        inodes: how many files the file system can hold; 0 if it sets no limit.
    """

    size_bytes: int
    free_bytes: int
    inodes: int
    free_inodes: int

    @property
    def full_share(self) -> float:
        """The share of the bytes that is taken, from 0 to 1."""
        return 1 - self.free_bytes / self.size_bytes if self.size_bytes else 0.0

    @property
    def is_low(self) -> bool:
        """Whether to make room soon."""
        few_bytes = self.free_bytes < min(_LOW_SHARE * self.size_bytes, _LOW_BYTES)
        return few_bytes or self.free_inodes < _LOW_INODES_SHARE * self.inodes


def read_free_space(files: Files) -> FreeSpace | None:
    """Return the room on the disk of a namespace; None for an object store, which has no such limit."""
    if not isinstance(files, LocalFiles):
        return None
    disk = os.statvfs(files.root)
    return FreeSpace(
        size_bytes=(disk.f_blocks - disk.f_bfree + disk.f_bavail) * disk.f_frsize,
        free_bytes=disk.f_bavail * disk.f_frsize,
        inodes=disk.f_files,
        free_inodes=disk.f_favail,
    )


def describe_free_space(space: FreeSpace) -> str:
    """Return one sentence part, such as "12 % full, 3.4 GB of 40 GB free"."""
    text = f"{space.full_share:.0%} full, {format_size(space.free_bytes)} of {format_size(space.size_bytes)} free"
    few_inodes = space.free_inodes < _LOW_INODES_SHARE * space.inodes
    return f"{text}, and room for only {space.free_inodes:,} more files" if few_inodes else text
