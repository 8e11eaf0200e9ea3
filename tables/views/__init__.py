"""The views of a namespace, in the SQL that Spark and DuckDB share; `{database}` stands for the database's name."""

from __future__ import annotations

from . import delays, groups, log, topics, transactions
from .columns import VIEW_COLUMNS

__all__ = ["VIEWS", "VIEW_COLUMNS"]

VIEWS: dict[str, str] = {**topics.VIEWS, **log.VIEWS, **transactions.VIEWS, **groups.VIEWS, **delays.VIEWS}
