"""Whose SQL a text is. Apart from what runs it, so that the command's help loads nothing for it."""

from __future__ import annotations

from enum import Enum


class Dialect(str, Enum):
    spark = "spark"
    duckdb = "duckdb"
