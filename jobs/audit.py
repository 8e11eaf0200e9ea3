"""Audit a namespace, or the messages of a topic: `python jobs/audit.py --path ...`.

An audit of a namespace checks that no message is lost, duplicated or out of place. Each invariant is an expectation of
Great Expectations: a query over tables and views, which runs in DuckDB (`engine/client/quality/audit.py`). Data Docs
show each query and the rows that break it.

    spark-submit --properties-file conf/spark-defaults.conf --py-files dist/lakemq.zip jobs/audit.py \\
        --path data/mq --conf conf/lakemq.yaml --topic orders

An audit of a topic checks its messages by its suite, with Spark (`engine/client/quality/topic_audit.py`). Great
Expectations is loaded here and nowhere else.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakemq import connect
from lakemq.engine.client.quality import create_ephemeral_context, import_great_expectations
from lakemq.engine.client.quality.audit import INVARIANTS, SUBJECTS, Invariant, PreparedAudit, prepare
from lakemq.engine.client.quality.topic_audit import TABLES, check_columns, load_topic_suite, select_messages
from lakemq.engine.namespace.extras import needs
from lakemq.engine.namespace.namespace import Namespace
from lakemq.errors import ExpectationFailed, IllegalState, InvalidRecord, TableDamaged
from lakemq.jobs import entry
from lakemq.jobs.output import to_json

if TYPE_CHECKING:
    from great_expectations import ExpectationSuite
    from great_expectations.data_context import EphemeralDataContext
    from pyspark.sql import SparkSession

    from lakemq.engine.client.connection import Connection

log = logging.getLogger("lakemq.audit")

_SOME = 5
"""Rows that the log names per broken invariant."""

_LONGEST = 500
"""Characters of an expectation in the log."""


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
    import_great_expectations()
    from lakemq.engine.client.quality.gx import run_queries_in

    with run_queries_in(prepared.database):
        yield from _run_checkpoints(prepared, docs)


def _run_checkpoints(prepared: PreparedAudit, docs: Path | None) -> Iterator[InvariantResult]:
    import pandas as pd
    from great_expectations import ExpectationSuite

    from lakemq.engine.client.quality.gx import SUBJECT, make_expectation

    context = _create_context(docs)
    source = context.data_sources.add_pandas("namespace")
    for subject in prepared.subjects:
        invariants = [invariant for invariant in INVARIANTS if invariant.table == subject]
        suite = ExpectationSuite(name=subject, expectations=[make_expectation(invariant) for invariant in invariants])
        batch = pd.DataFrame({SUBJECT: [subject]})
        results = _run_checkpoint(context, source.add_dataframe_asset(subject), suite, batch, _COMPLETE)
        count = _count(prepared, subject)
        for invariant, result in zip(invariants, results, strict=True):
            yield _outcome(invariant, count, result)


_COMPLETE = {"result_format": "COMPLETE"}


def _create_context(docs: Path | None) -> EphemeralDataContext:
    context = create_ephemeral_context()
    if docs is not None:
        context.add_data_docs_site("audit", _site(docs))
    return context


def _run_checkpoint(
    context: EphemeralDataContext,
    asset: Any,
    suite: ExpectationSuite,
    batch: Any,
    result_format: dict[str, Any],
    run_name: str | None = None,
) -> Any:
    """Return the results of a suite over a DataFrame, and add them to the Data Docs of the context."""
    from great_expectations import Checkpoint, ValidationDefinition
    from great_expectations.checkpoint import UpdateDataDocsAction
    from great_expectations.core.run_identifier import RunIdentifier

    batches = asset.add_batch_definition_whole_dataframe("all")
    definition = ValidationDefinition(name=suite.name, data=batches, suite=context.suites.add(suite))
    checkpoint = Checkpoint(
        name=suite.name,
        validation_definitions=[context.validation_definitions.add(definition)],
        actions=[UpdateDataDocsAction(name="docs", site_names=["audit"])] if context.get_site_names() else [],
        result_format=result_format,
    )
    added, run_id = context.checkpoints.add(checkpoint), RunIdentifier(run_name=run_name)
    (run,) = added.run(batch_parameters={"dataframe": batch}, run_id=run_id).run_results.values()
    return run.results


def audit_topic(
    mq: Connection,
    spark: SparkSession,
    topic: str,
    table: str = TABLES[0],
    suite: Path | None = None,
    offsets: Mapping[int, Sequence[int]] | None = None,
    docs: Path | None = None,
) -> tuple[Audit, dict[str, Any]]:
    """Check the messages of a topic by a suite, and return what Great Expectations found, and what it looked at.

    Raises InvalidConfig, ExpectationFailed, InvalidRecord, IllegalState, UnknownTopicOrPartition, MissingExtra.
    """
    loaded, state = load_topic_suite(mq.namespace, topic, suite), mq.state()
    messages = select_messages(spark, mq.namespace, state.topic(topic), table, offsets)
    check_columns(loaded, messages)
    audited = messages.describe()
    log.info("Auditing %s by %d rules: %s", topic, len(loaded.expectations), to_json(audited))
    context = _create_context(docs)
    loaded.notes = to_json(audited)
    run_name = table if messages.version is None else f"{table} version {messages.version}"
    asset = context.data_sources.add_spark(topic, persist=False).add_dataframe_asset(table)
    places = {"result_format": "SUMMARY", "unexpected_index_column_names": ["partition", "offset"]}
    results = _run_checkpoint(context, asset, loaded, messages.df, places, run_name)
    outcomes = tuple(_topic_outcome(topic, result) for result in results)
    return Audit(state.step, None, outcomes), audited


def _topic_outcome(topic: str, result: Any) -> InvariantResult:
    config, found = result.expectation_config, result.result
    kwargs = {name: value for name, value in config.kwargs.items() if name != "batch_id"}
    says = f"{config.type} {to_json(kwargs)}"[:_LONGEST]
    infos = [result.exception_info, *result.exception_info.values()]
    if any(isinstance(info, dict) and info.get("raised_exception") for info in infos):
        raise InvalidRecord(f"The suite of {topic} cannot be evaluated on these rows.", found=says)
    rule = Invariant(topic, config.type, says, "", is_warning=config.severity != "critical")
    broken = 0 if result.success else found.get("unexpected_count") or 1
    rows = found.get("partial_unexpected_index_list") or []
    where = [f"{topic}-{row['partition']}: {row['offset']}" for row in rows[:_SOME]]
    if isinstance(observed := found.get("observed_value"), int | float):
        where = [f"{observed:g}"]
    return InvariantResult(rule, found.get("element_count", 1), broken, tuple(where))


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


def parser() -> argparse.ArgumentParser:
    examples = "--path data/mq --conf conf/lakemq.yaml\n--path data/mq --docs audit-docs --strict"
    parser = entry.make_job_parser(
        "audit", "Check the invariants of a namespace, or the messages of a topic.", examples
    )
    parser.add_argument("--docs", metavar="FOLDER", type=Path, help="write Great Expectations' Data Docs (HTML) there")
    parser.add_argument("--strict", action="store_true", help="treat warnings as failures")
    group = parser.add_argument_group("topic", "a topic whose messages are checked by its suite instead, with Spark")
    group.add_argument("--topic", help="the topic")
    group.add_argument("--suite", metavar="FILE", type=Path, help="a suite other than that of the topic's gate")
    group.add_argument("--table", choices=TABLES, default=TABLES[0], help="where the messages are read")
    group.add_argument(
        "--offsets", metavar="JSON", type=_parse_ranges, help="what an earlier audit read: its `offsets`"
    )
    group.add_argument("--master", help="Spark's master, unless spark-submit sets it")
    return parser


def _parse_ranges(text: str) -> dict[int, tuple[int, int]]:
    try:
        return {int(partition): (int(start), int(end)) for partition, (start, end) in dict(json.loads(text)).items()}
    except (TypeError, ValueError):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected such as '{{\"0\": [0, 10]}}'") from None


def main(arguments: list[str] | None = None) -> int:
    made = parser()
    options = entry.parse_arguments(made, arguments)
    if options.topic is None and (options.suite or options.offsets):
        made.error("--suite and --offsets need --topic")

    def work() -> entry.Counts:
        audited: Mapping[str, Any] = {}
        if options.topic is None:
            with entry.connect_namespace(options) as mq:
                result = audit(mq.namespace, options.docs)
        else:
            result, audited = _audit_topic_in_session(options)
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
            if options.topic is not None:
                raise ExpectationFailed(f"The messages of {options.topic} fail its suite.", found=names)
            raise TableDamaged("The audit found broken invariants.", found=names)
        return {"step": result.step, "rules": len(result.outcomes), "warnings": len(broken), **audited}

    return entry.run("audit", options, work)


def _audit_topic_in_session(options: argparse.Namespace) -> tuple[Audit, dict[str, Any]]:
    with needs("spark"):
        from lakemq.jobs.session import silence_error_logs, spark_session
    silence_error_logs()
    spark = spark_session("lakemq audit", options.master)
    if not hasattr(spark, "_jvm"):
        expected = "a classic session: no SPARK_REMOTE, no spark.api.mode"
        raise IllegalState("Great Expectations cannot read this session.", found="Spark Connect", expected=expected)
    storage = entry.storage_options(options.storage_option)
    with connect(options.path, spark=spark, conf=options.conf, storage_options=storage) as mq:
        return audit_topic(mq, spark, options.topic, options.table, options.suite, options.offsets, options.docs)


if __name__ == "__main__":
    entry.run_as_script(main)
