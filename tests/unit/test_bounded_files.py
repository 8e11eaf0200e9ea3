"""Data files of a few kilobytes that unpack to gigabytes, that are cut short while they are read, or are links."""

import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from targets import extended_but

from lakemq.engine.namespace.data_file import file_name, read_file_facts, repeat_name, write_data_file
from lakemq.engine.namespace.data_file_reader import open_data_file, verify_files
from lakemq.errors import FileTruncated, StorageError
from lakemq.tables.specs.messages import BODY_SCHEMA, MESSAGES, FileFacts
from lakemq.tables.storage.object_stores.files import LocalFiles

ID = 7
MOST_BYTES = 700 << 20
"""Address space of a process that reads one file. It takes half of it to begin."""


def write_file(files: LocalFiles, columns: dict[str, pa.Array], groups: int = 1, **options: Any) -> FileFacts:
    """Write a file as another program could. columns: beside those that are the same in each row."""
    count = len(columns["value"])
    constants = {"partition": 0, "timestamp": 1}
    rows = {
        **{f.name: pa.repeat(pa.scalar(constants.get(f.name), f.type), count) for f in BODY_SCHEMA},
        "file_id": pa.repeat(ID, count),
        "topic": repeat_name("a", count),
        **columns,
    }
    settings = {"compression": "snappy", "use_dictionary": True, "write_page_checksum": True, **options}
    path = Path(files.root, file_name(ID))
    path.parent.mkdir(parents=True, exist_ok=True)
    fields = [f.with_type(rows[f.name].type) if f.name in rows else f for f in MESSAGES.stored_schema]
    with pq.ParquetWriter(path, pa.schema(fields), store_schema=False, **settings) as writer:
        for group in range(groups):
            numbers = pa.array(np.arange(group * count, (group + 1) * count))
            writer.write_table(pa.table([{**rows, "row": numbers}[f.name] for f in fields], pa.schema(fields)), count)
    facts = read_file_facts(files, ID)
    assert facts is not None
    return facts


def repeat_by_dictionary(value: bytes, count: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), count), pa.array([value], pa.binary()))


def write_long_entry(files: LocalFiles, entry: bytes = b"x" * 900_000) -> FileFacts:
    columns = {"value": repeat_by_dictionary(entry, 12_000)}
    delta = {"column_encoding": {"row": "DELTA_BINARY_PACKED"}}
    return write_file(files, columns, compression="zstd", use_dictionary=["topic", "value"], **delta)


def write_shared_prefixes(files: LocalFiles) -> FileFacts:
    values = pa.array([b"x" * 900_000] * 150)
    return write_file(files, {"value": values}, use_dictionary=["topic"], column_encoding={"value": "DELTA_BYTE_ARRAY"})


def write_squeezed_page(files: LocalFiles) -> FileFacts:
    return write_file(files, {"value": pa.array([b"x" * 150_000_000])}, use_dictionary=["topic"], compression="zstd")


def write_many_groups(files: LocalFiles) -> FileFacts:
    return write_file(files, {"value": repeat_by_dictionary(b"x" * 30_000, 1_000)}, groups=30)


def write_null_items(files: LocalFiles) -> FileFacts:
    count, header = 40_000_000, BODY_SCHEMA.field("headers").type
    keys, nulls = repeat_by_dictionary(b"", count).cast(pa.binary()).cast(pa.string()), pa.nulls(count, pa.binary())
    items = pa.StructArray.from_arrays([keys, nulls], fields=list(header.value_type))
    lists = pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), items, type=header)
    return write_file(files, {"value": pa.array([b"x"]), "headers": lists})


def write_numbers_that_are_alike(files: LocalFiles) -> FileFacts:
    alike = ["topic", "file_id", "partition", "timestamp", "value"]
    rows = {"value": pa.nulls(16 << 20, pa.binary())}
    delta = {"column_encoding": {"row": "DELTA_BINARY_PACKED"}}
    return write_file(files, rows, compression="zstd", use_dictionary=alike, **delta)


WRITERS: list[Callable[[LocalFiles], FileFacts]] = [
    write_long_entry,
    write_shared_prefixes,
    write_squeezed_page,
    write_many_groups,
    write_null_items,
    write_numbers_that_are_alike,
]


@pytest.mark.parametrize("write", extended_but(WRITERS[:1], WRITERS), ids=lambda write: write.__name__)
def test_small_file_that_unpacks_to_much_is_refused_before_it_is_unpacked(
    tmp_path: Path, write: Callable[[LocalFiles], FileFacts]
) -> None:
    facts = write(LocalFiles(str(tmp_path)))
    assert facts.size_bytes < 700_000
    command = [sys.executable, __file__, str(tmp_path), str(facts.footer_hash)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"Data file {ID:016x} is damaged" in done.stdout
    assert re.search("would unpack to|rows; at most", done.stdout)


def read_with_little_memory(root: str, footer_hash: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    try:
        with open_data_file(LocalFiles(root), ID, footer_hash) as file:
            file.read(["row", "value", "headers"])
    except FileTruncated as error:
        print(error)


@pytest.mark.extended
def test_file_of_values_that_repeat_is_read(tmp_path: Path) -> None:
    """A dictionary of short values, and what compresses as well as snappy can, is no attack."""
    files = LocalFiles(str(tmp_path))
    facts = write_file(files, {"value": repeat_by_dictionary(b"x" * 100, 200_000)})
    with open_data_file(files, ID, facts.footer_hash) as file:
        assert file.read(["value"]).num_rows == 200_000
    files.delete([file_name(ID)])
    same = {"topic": "a", "partition": 0, "timestamp": 1, "value": b"x" * 2_000, "headers": [("key", None)] * 5}
    body = pa.table([pa.array([same.get(f.name)] * 100_000, f.type) for f in BODY_SCHEMA], BODY_SCHEMA)
    footer_hash = write_data_file(files, ID, body).footer_hash
    with open_data_file(files, ID, footer_hash) as file:
        assert file.read(BODY_SCHEMA.names).cast(BODY_SCHEMA).equals(body)


@pytest.mark.parametrize("kept_bytes", [0, 5_000, 1_000_000])
def test_file_that_is_cut_short_while_it_is_read_is_damaged(tmp_path: Path, kept_bytes: int) -> None:
    """A read of a mapped file would end the process with SIGBUS."""
    files = LocalFiles(str(tmp_path))
    values = pa.array([os.urandom(1_000) for _ in range(3_000)])
    facts = write_file(files, {"value": values}, use_dictionary=["topic"])

    def read_cut_file() -> None:
        with open_data_file(files, ID, facts.footer_hash) as file:
            os.truncate(tmp_path / file_name(ID), kept_bytes)
            file.read(["value"])

    with pytest.raises(FileTruncated, match=f"{ID:016x} is damaged"):
        read_cut_file()


def test_data_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    files = LocalFiles(str(tmp_path / "mq"))
    facts = write_file(files, {"value": pa.array([b"x"])})
    path = Path(files.root, file_name(ID))
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="symbolic links"), open_data_file(files, ID, facts.footer_hash):
        pass
    assert verify_files(files, {ID: facts.footer_hash}) == {ID: "gone"}


def test_data_file_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = LocalFiles(str(tmp_path))
    monkeypatch.setattr(files, "open_input", Mock(side_effect=PermissionError(13, "Permission denied")))
    with pytest.raises(StorageError, match=f"{ID:016x} cannot be read"), open_data_file(files, ID, 0):
        pass


if __name__ == "__main__":
    read_with_little_memory(sys.argv[1], int(sys.argv[2]))
