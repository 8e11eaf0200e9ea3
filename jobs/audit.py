"""Audit a namespace: `lakemq audit`, or `python jobs/audit.py --path ...`.

An audit checks that no message is lost, duplicated or out of place. Each invariant is an expectation of Great
Expectations: a query over tables and views, which runs in DuckDB (`engine/client/quality/audit.py`). Data Docs show
each query and the rows that break it. Great Expectations is loaded here and nowhere else.
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lakemq.engine.client.quality import create_ephemeral_context, import_great_expectations
from lakemq.engine.client.quality.audit import INVARIANTS, SUBJECTS, Invariant, PreparedAudit, prepare
from lakemq.engine.namespace.namespace import Namespace
from lakemq.errors import TableDamaged
from lakemq.jobs.entry import Counts, connect_namespace, make_job_parser, parse_arguments, run, run_as_script

log = logging.getLogger("lakemq.audit")

_SOME = 5
"""Rows that the log names per broken invariant."""


@dataclass(frozen=True)
class InvariantResult:
    """The result of one invariant.

    rows: how many subjects it has, such as partitions; broken: how many rows break it; where: the first of these, with
    the figure.
    """

    rule: Invariant
    rows: int
    broken: int
    where: tuple[str, ...]


@dataclass(frozen=True)
class Audit:
    """The results of all invariants.

    step: the watermark's step at the time of the audit. after_step: the replay covered the journal after this step;
    None: there was no replay.
    """

    step: int
    after_step: int | None
    outcomes: tuple[InvariantResult, ...]

    def holds(self, strict: bool = False) -> bool:
        """Return whether no invariant is broken. strict: warnings count, too."""
        return not any(outcome.broken for outcome in self.outcomes if strict or not outcome.rule.is_warning)


def audit(namespace: Namespace, docs: Path | None = None) -> Audit:
    """Audit the namespace as of its watermark.

    docs: a folder for Data Docs. Raises StepTooOld, TableDamaged, OSError.
    """
    prepared = prepare(namespace)
    with prepared.database:
        outcomes = tuple(examine(prepared, docs))
    after = prepared.replayed.after_step if prepared.replayed else None
    return Audit(prepared.step, after, outcomes)


def examine(prepared: PreparedAudit, docs: Path | None = None) -> Iterator[InvariantResult]:
    """Ask Great Expectations whether each invariant of the subjects holds, in their order."""
    with _without_usage_statistics():
        import_great_expectations()
        from lakemq.engine.client.quality.gx import run_queries_in

        with run_queries_in(prepared.database):
            yield from _run_checkpoints(prepared, docs)


def _run_checkpoints(prepared: PreparedAudit, docs: Path | None) -> Iterator[InvariantResult]:
    import pandas as pd
    from great_expectations import Checkpoint, ExpectationSuite, ValidationDefinition
    from great_expectations.checkpoint import UpdateDataDocsAction, ValidationAction

    from lakemq.engine.client.quality.gx import SUBJECT, make_expectation

    context = create_ephemeral_context()
    actions: list[ValidationAction] = []
    if docs is not None:
        context.add_data_docs_site("audit", _site(docs))
        actions.append(UpdateDataDocsAction(name="docs", site_names=["audit"]))
    source = context.data_sources.add_pandas("namespace")
    for subject in prepared.subjects:
        invariants = [invariant for invariant in INVARIANTS if invariant.table == subject]
        expectations = [make_expectation(invariant) for invariant in invariants]
        suite = context.suites.add(ExpectationSuite(name=subject, expectations=expectations))
        batches = source.add_dataframe_asset(subject).add_batch_definition_whole_dataframe("all")
        definition = ValidationDefinition(name=subject, data=batches, suite=suite)
        checkpoint = Checkpoint(
            name=subject,
            validation_definitions=[context.validation_definitions.add(definition)],
            actions=actions,
            result_format={"result_format": "COMPLETE"},
        )
        batch = {"dataframe": pd.DataFrame({SUBJECT: [subject]})}
        (run,) = context.checkpoints.add(checkpoint).run(batch_parameters=batch).run_results.values()
        count = _count(prepared, subject)
        for invariant, result in zip(invariants, run.results, strict=True):
            yield _outcome(invariant, count, result)


def _count(prepared: PreparedAudit, subject: str) -> int:
    (count,) = prepared.database.execute(f"SELECT count(*) FROM {SUBJECTS[subject]}").fetchone() or (0,)
    return int(count)


def _outcome(invariant: Invariant, count: int, result: Any) -> InvariantResult:
    if result.exception_info.get("raised_exception"):
        message = result.exception_info.get("exception_message")
        raise RuntimeError(f"{invariant.table}.{invariant.column}: {message}")
    broken = int(result.result["observed_value"])
    rows = result.result["details"]["unexpected_rows"][:_SOME]
    return InvariantResult(invariant, count, broken, tuple(map(_where, rows)))


def _where(row: Mapping[str, Any]) -> str:
    *place, figure = map(str, row.values())
    return f"{'-'.join(place)}: {figure}"


def _site(docs: Path) -> Any:
    return {
        "class_name": "SiteBuilder",
        "show_how_to_buttons": False,
        "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
        "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(docs.absolute())},
    }


@contextmanager
def _without_usage_statistics() -> Iterator[None]:
    """Keep Great Expectations from sending usage statistics."""
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
    parser = make_job_parser("audit", "Check the invariants of a namespace.", examples)
    parser.add_argument("--docs", metavar="FOLDER", type=Path, help="write Great Expectations' Data Docs (HTML) there")
    parser.add_argument("--strict", action="store_true", help="treat warnings as failures")
    return parser


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(parser(), arguments)

    def work() -> Counts:
        with connect_namespace(options) as mq:
            result = audit(mq.namespace, options.docs)
        broken = [outcome for outcome in result.outcomes if outcome.broken]
        for outcome in broken:
            log.log(
                logging.WARNING if outcome.rule.is_warning else logging.ERROR,
                "%s.%s, in %d of %d: %s (%s)",
                *(outcome.rule.table, outcome.rule.column, outcome.broken, outcome.rows, outcome.rule.says),
                ", ".join(outcome.where),
            )
        if not result.holds(options.strict):
            names = ", ".join(f"{outcome.rule.table}.{outcome.rule.column}" for outcome in broken)
            raise TableDamaged("The audit found broken invariants.", found=names)
        return {"step": result.step, "rules": len(result.outcomes), "warnings": len(broken)}

    return run("audit", options, work)


if __name__ == "__main__":
    run_as_script(main)
