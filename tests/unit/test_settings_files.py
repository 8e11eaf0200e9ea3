"""Settings files: each content is either accepted, or refused in one line that names the key or the file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lakemq.engine.namespace.config import load_config
from lakemq.errors import InvalidConfig
from lakemq.jobs.cli import app

BILLION_LAUGHS = "a: &a [x, x]\nb: &b [*a, *a]\n" + "".join(
    f"{chr(c)}: &{chr(c)} [{', '.join([f'*{chr(c - 1)}'] * 9)}]\n" for c in range(ord("c"), ord("z"))
)

BAD = {
    "unknown": (b"lease.m: 1", "lease.m"),
    "kafka": (b"min.insync.replicas: 2", "min.insync.replicas is no setting of LakeMQ"),
    "word": (b"lease.ms: soon", "lease.ms"),
    "date": (b"lease.ms: 2024-01-01", "lease.ms"),
    "bad date": (b"lease.ms: 2024-13-45", "month"),
    "boolean": (b"lease.ms: yes", "lease.ms"),
    "float": (b"lease.ms: 1e4", "lease.ms"),
    "list": (b"lease.ms: [1]", "lease.ms"),
    "null": (b"lease.ms:", "lease.ms"),
    "bytes": (b"lease.ms: !!binary aGk=", "lease.ms"),
    "object": (b"lease.ms: !!python/object/apply:os.getcwd []", "Cannot read"),
    "long": (b"lease.ms: " + b"9" * 5000, "Cannot read"),
    "out of range": (b"lease.ms: 18446744073709551616", "lease.ms"),
    "number as key": (b"5: 1", "A key is not text"),
    "list as key": (b"[a]: 1", "A key is not text"),
    "twice": (b"lease.ms: 1000\nlease.ms: 1000", "lease.ms in line 2"),
    "as long as answers are kept": (
        b"request.timeout.ms: 60000\nclient.expiration.ms: 60000",
        "request.timeout.ms must be below client.expiration.ms",
    ),
    "nested": (b"engine:\n  tick.ms: 1", "engine"),
    "not a mapping": (b"- a", "holds no settings"),
    "latin-1": ("# \u00fc\nlease.ms: 1000".encode("latin-1"), "UTF-8"),
    "utf-16": ("lease.ms: 1000".encode("utf-16"), "UTF-8"),
    "nul": (b"lease.ms: 1\0", "Cannot read"),
    "two documents": (b"lease.ms: 1000\n---\nlease.ms: 1000", "Cannot read"),
    "broken": (b"lease.ms: [", "Cannot read"),
    "deep": (b"a: " + b"[" * 1000, "Cannot read"),
    "base 60": (b"lease.ms: " + b"1:" * 3000 + b"1.5", "Cannot read"),
    "no boolean": (b"lease.ms: !!bool x", "Cannot read"),
    "laughs": (BILLION_LAUGHS.encode(), "Unknown parameter"),
}


@pytest.mark.slow
def test_bad_files_are_refused_in_one_line_that_names_what_is_wrong(tmp_path: Path) -> None:
    file, wrong = tmp_path / "lakemq.yaml", []
    for kind, (text, expected) in BAD.items():
        file.write_bytes(text)
        result = CliRunner().invoke(app, ["--path", str(tmp_path / "mq"), "--conf", str(file), "topics", "list"])
        is_one_line = re.fullmatch(r"INVALID_CONFIG: .{,3000}\n", result.stderr) is not None
        is_named = f"In {file}: " in result.stderr and expected in result.stderr
        if (result.exit_code, result.stdout) != (3, "") or not is_one_line or not is_named:
            wrong.append((kind, result.exit_code, result.output))
        with pytest.raises(InvalidConfig):
            load_config(str(file))
    assert wrong == []


def test_good_files_are_accepted(tmp_path: Path) -> None:
    file, values = tmp_path / "lakemq.yaml", []
    for text in ("", "# nothing\n", "lease.ms: '1000'", "\ufefflease.ms: 1000", "lease.ms: 0x3e8"):
        file.write_text(text, encoding="utf-8")
        values.append(load_config(str(file))["lease.ms"])
    assert values == [10_000, 10_000, 1000, 1000, 1000]


def test_path_that_is_no_file_is_named(tmp_path: Path) -> None:
    for name in (str(tmp_path), str(tmp_path / "none"), "a\0b"):
        with pytest.raises(InvalidConfig, match="Cannot read"):
            load_config(name)
