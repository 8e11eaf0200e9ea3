"""Schemas of topics in files: `--schema orders.avsc`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_TYPES = {".avsc": "avro", ".json": "json", ".ddl": "ddl", ".sql": "ddl"}
_NAMES = ".avsc for Avro, .json for JSON Schema, .ddl for the DDL of a struct"

SchemaFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help=f"File with the schema of the values: {_NAMES}."),
]


def read_schema_settings(path: Path | None) -> dict[str, str]:
    """Return the settings `schema` and `schema.type` for a file; none without a file."""
    if path is None:
        return {}
    if path.suffix not in _TYPES:
        raise typer.BadParameter(f"{path.name} does not say what it is; expected {_NAMES}", param_hint="--schema")
    try:
        return {"schema": path.read_text(encoding="utf-8").strip(), "schema.type": _TYPES[path.suffix]}
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{path} cannot be read: {error}", param_hint="--schema") from None
