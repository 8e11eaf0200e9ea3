"""Audit a namespace: `lakemq audit`, or `spark-submit jobs/audit.py --path ...` (no Spark is started).

Does it hold what it must? What is measured are a few small tables (`measures`), one row per partition, file, topic or
table; what must hold of them are expectations of Great Expectations, which also writes their Data Docs. It is loaded
here and nowhere else.
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakemq.errors import TableDamaged
from lakemq.jobs.entry import Counts, arguments_of, connected, parsed, run, started
from lakemq.jobs.great import context_in_memory, great_expectations
from lakemq.jobs.measures import Measures, measure

if TYPE_CHECKING:
    import pyarrow as pa

from lakemq.engine.namespace.namespace import Namespace

log = logging.getLogger("lakemq.audit")

_SOME = 5


@dataclass(frozen=True)
class Rule:
    """What must hold in every row of a table: the column is 0, or empty text. A warning may have a good reason."""

    table: str
    column: str
    says: str
    is_warning: bool = False


RULES = (
    Rule("tables", "files_gone", "Every file of the tables is there."),
    Rule("tables", "foreign_commits", "Nobody but LakeMQ has changed rows of a table, as far back as its log goes."),
    Rule("tables", "rows_unlike_the_journal", "The tables hold what a replay of the journal's decisions says."),
    Rule("data_files", "flaw", "Every data file is there, registered in messages, and as it was written."),
    Rule("partitions", "offsets_missing", "Offsets are dense from the log start to the high watermark."),
    Rule("partitions", "offsets_twice", "No offset was given out twice."),
    Rule("partitions", "offsets_beyond_the_end", "No offset lies at or above the high watermark."),
    Rule("partitions", "rows_missing", "Every offset has its row, in the file and partition that its segment names."),
    Rule("partitions", "rows_twice", "No row of a file was published twice to a topic."),
    Rule("partitions", "stable_out_of_bounds", "Log start <= last stable offset <= high watermark."),
    Rule(
        "partitions",
        "stable_off_by",
        "The last stable offset is where the first open transaction begins, else the high watermark.",
    ),
    Rule("partitions", "aborted_shown", "No aborted message is in log_committed."),
    Rule("partitions", "open_shown", "No message of an open transaction is in log_committed."),
    Rule("partitions", "shown_too_many", "log_committed has as many messages as were committed below that offset."),
    Rule(
        "partitions",
        "messages_too_many",
        "From the log start to the high watermark there are messages, each once, and markers.",
    ),
    Rule(
        "partitions",
        "rows_elsewhere",
        "Keys are where their hash says, by the number of partitions now. Publishing to an explicit partition, or a"
        " change of that number, explains others.",
        is_warning=True,
    ),
    Rule("delays", "unaccounted", "Delayed messages are released, cancelled, rescheduled, aborted, or wait."),
    Rule("delays", "released_not_in_log", "What was released is in the log."),
    Rule("delays", "rows_missing", "Every message that waits has its row."),
    Rule("dead_letters", "rows_missing", "Every row that was refused is there."),
)


@dataclass(frozen=True)
class Outcome:
    """Of one rule. rows: of how many; broken: in how many of them it does not hold, and where, of the first few."""

    rule: Rule
    rows: int
    broken: int
    where: tuple[str, ...]


@dataclass(frozen=True)
class Audit:
    """step: of the watermark; after_step: what was decided since then was replayed, None where it was not."""

    step: int
    after_step: int | None
    outcomes: tuple[Outcome, ...]

    def holds(self, strict: bool = False) -> bool:
        """strict: warnings count, too."""
        return not any(one.broken for one in self.outcomes if strict or not one.rule.is_warning)


def audit(namespace: Namespace, docs: Path | None = None) -> Audit:
    """The namespace as of its watermark. docs: a folder for Data Docs. Raises StepTooOld, TableDamaged, OSError."""
    measured = measure(namespace)
    outcomes = tuple(validate(measured, docs))
    after = measured.replayed.after_step if measured.replayed else None
    return Audit(measured.step, after, outcomes)


def validate(measured: Measures, docs: Path | None = None) -> Iterator[Outcome]:
    """The rules of what was measured, in their order."""
    with _quiet():
        gx = great_expectations()
        from great_expectations.checkpoint import UpdateDataDocsAction, ValidationAction

        context = context_in_memory()
        actions: list[ValidationAction] = []
        if docs is not None:
            context.add_data_docs_site("audit", _site(docs))
            actions.append(UpdateDataDocsAction(name="docs", site_names=["audit"]))
        source = context.data_sources.add_pandas("namespace")
        for name, table in measured.tables.items():
            rules = [rule for rule in RULES if rule.table == name]
            suite = context.suites.add(gx.ExpectationSuite(name=name, expectations=[_expectation(r) for r in rules]))
            batches = source.add_dataframe_asset(name).add_batch_definition_whole_dataframe("all")
            of_all = gx.ValidationDefinition(name=name, data=batches, suite=suite)
            checkpoint = gx.Checkpoint(
                name=name,
                validation_definitions=[context.validation_definitions.add(of_all)],
                actions=actions,
                result_format={"result_format": "COMPLETE", "unexpected_index_column_names": _names(table)},
            )
            result = context.checkpoints.add(checkpoint).run(batch_parameters={"dataframe": _frame(table)})
            (run,) = result.run_results.values()
            for rule, found in zip(rules, run.results, strict=True):
                yield _outcome(rule, table.num_rows, found)


def _expectation(rule: Rule) -> Any:
    from great_expectations import expectations
    from great_expectations.expectations.metadata_types import FailureSeverity

    return expectations.ExpectColumnValuesToBeInSet(
        column=rule.column,
        value_set=[""] if rule.column == "flaw" else [0],
        description=rule.says,
        severity=FailureSeverity.WARNING if rule.is_warning else FailureSeverity.CRITICAL,
    )


def _outcome(rule: Rule, rows: int, found: Any) -> Outcome:
    if found.exception_info.get("raised_exception"):
        raise RuntimeError(f"{rule.table}.{rule.column}: {found.exception_info.get('exception_message')}")
    broken = int(found.result.get("unexpected_count") or 0)
    indexes = found.result.get("unexpected_index_list") or []
    return Outcome(rule, rows, broken, tuple(_where(rule, index) for index in indexes[:_SOME]))


def _where(rule: Rule, index: dict[str, Any]) -> str:
    place = "-".join(str(value) for name, value in index.items() if name != rule.column)
    return f"{place}: {index[rule.column]}"


def _names(table: pa.Table) -> list[str]:
    """The columns by which a row is told."""
    return [name for name in ("table", "file", "topic", "source", "partition") if name in table.column_names]


def _frame(table: pa.Table) -> Any:
    import pandas as pd

    return pd.DataFrame({name: table.column(name).to_pylist() for name in table.column_names})


def _site(docs: Path) -> Any:
    return {
        "class_name": "SiteBuilder",
        "show_how_to_buttons": False,
        "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
        "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(docs.absolute())},
    }


@contextmanager
def _quiet() -> Iterator[None]:
    """Great Expectations tells nobody of its use, and prints nothing."""
    before = os.environ.get("GX_ANALYTICS_ENABLED")
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ["GX_ANALYTICS_ENABLED"]
        else:
            os.environ["GX_ANALYTICS_ENABLED"] = before


def parser() -> argparse.ArgumentParser:
    examples = "--path data/mq --conf conf/lakemq.yaml\n--path data/mq --docs audit-docs --strict"
    parser = arguments_of("audit", "Check that a namespace holds what it must.", examples)
    parser.add_argument("--docs", metavar="FOLDER", type=Path, help="write Great Expectations' Data Docs (HTML) there")
    parser.add_argument("--strict", action="store_true", help="what is only a warning counts, too")
    return parser


def main(arguments: list[str] | None = None) -> int:
    given = parsed(parser(), arguments)

    def work() -> Counts:
        with connected(given) as mq:
            found = audit(mq.namespace, given.docs)
        broken = [one for one in found.outcomes if one.broken]
        for one in broken:
            log.log(
                logging.WARNING if one.rule.is_warning else logging.ERROR,
                "%s.%s, in %d of %d: %s (%s)",
                *(one.rule.table, one.rule.column, one.broken, one.rows, one.rule.says, ", ".join(one.where)),
            )
        if not found.holds(given.strict):
            names = ", ".join(f"{one.rule.table}.{one.rule.column}" for one in broken)
            raise TableDamaged("The namespace does not hold what it must.", found=names)
        return {"step": found.step, "rules": len(found.outcomes), "warnings": len(broken)}

    return run("audit", given, work)


if __name__ == "__main__":
    started(main)
