"""What the tools of Kafka and kcat do, beside the commands that do the same here: a section of docs/command.md."""

from __future__ import annotations

KAFKA_TOOLS: dict[str, tuple[tuple[str, str], ...]] = {
    "kafka-topics": (
        ("`--create --topic T --partitions N`", "`lakemq topics create T --partitions N`"),
        ("`--create --if-not-exists`", "`lakemq topics create T --if-not-exists`"),
        ("`--create --config K=V`", "`lakemq topics create T --config K=V`"),
        ("`--replication-factor`, `--replica-assignment`", "None: the store replicates. A topic has no replicas."),
        ("`--list`", "`lakemq topics list`. There are no internal topics to exclude."),
        ("`--describe --topic T`", "`lakemq topics describe T`, also with the offsets"),
        ("`--describe --topic-id ID`", "`lakemq topics list --output json` shows the ids"),
        ("`--describe --topics-with-overrides`", "`lakemq topics list`, column `config`"),
        (
            "`--describe --under-replicated-partitions`, `--unavailable-partitions`, `--under-min-isr-partitions`",
            "None: there are no replicas. `lakemq status` shows the sequencer, `lakemq doctor` checks the files.",
        ),
        ("`--alter --partitions N`", "`lakemq topics alter T --partitions N`. Fewer partitions need `--force`."),
        ("`--delete`", "`lakemq topics delete T`"),
        ("`--delete --if-exists`", "None. `topics delete` ends with 1 and `UNKNOWN_TOPIC_OR_PARTITION`."),
        ("`kafka-delete-records --offset-json-file`", "`lakemq topics delete-records T --before 0=100`"),
    ),
    "kafka-configs": (
        ("`--entity-type topics --describe`", "`lakemq topics describe T`: value and origin of each setting"),
        ("`--entity-type topics --alter --add-config K=V`", "`lakemq topics alter T --config K=V`"),
        ("`--entity-type topics --alter --delete-config K`", "`lakemq topics alter T --reset K`"),
        ("`--entity-type groups --describe`", "`lakemq groups describe G --settings`"),
        ("`--entity-type groups --alter --add-config K=V`", "`lakemq groups alter G --config K=V`"),
        ("`--entity-type groups --alter --delete-config K`", "`lakemq groups alter G --reset K`"),
        ("`--add-config-file FILE`", "None for topics. The [settings file](settings.md#engine) has the defaults."),
        (
            "`--entity-type brokers`, `broker-loggers`",
            "None: each process reads its own [settings file](settings.md#engine), `lakemq --conf FILE`.",
        ),
        ("`--entity-type users`, `ips` (quotas, SCRAM)", "None: the store's permissions apply. There are no quotas."),
        ("`--entity-type client-metrics`", "None"),
    ),
    "kafka-consumer-groups": (
        ("`--list`", "`lakemq groups list`"),
        ("`--list --state S`", "`lakemq groups list --state S`"),
        ("`--list --type T`", "`lakemq groups describe --all-groups`, column `protocol`"),
        ("`--describe --offsets` (the default)", "`lakemq groups lag G`"),
        ("`--describe --state`", "`lakemq groups describe G --state`"),
        ("`--describe --members`", "`lakemq groups members G`, or `lakemq groups describe G --members`"),
        ("`--describe --members --verbose`", "`lakemq groups assignments G`, also with past owners: `--at TIME`"),
        ("`--describe --all-groups`", "`lakemq groups describe --all-groups`"),
        ("`--reset-offsets --dry-run`, `--execute`", "`lakemq groups reset-offsets G --topic T --to-latest --execute`"),
        ("`--reset-offsets --to-earliest`, `--to-latest`", "`lakemq groups reset-offsets G --to-earliest`"),
        ("`--reset-offsets --to-offset N`, `--shift-by N`", "`lakemq groups reset-offsets G --shift-by N`"),
        ("`--reset-offsets --to-datetime`, `--by-duration`", "`lakemq groups reset-offsets G --to-datetime TIME`"),
        ("`--reset-offsets --to-current`", "None: `--shift-by 0` sets the committed offsets again."),
        ("`--reset-offsets --export`, `--from-file`", "`lakemq groups reset-offsets G --from-file FILE`"),
        ("`--delete`", "`lakemq groups delete G`"),
        ("`--delete-offsets --topic T`", "`lakemq groups delete-offsets G --topic T`"),
        ("`--timeout`", "None: a silent sequencer is reported after two seconds, and taken over from."),
        ("*none*", "`lakemq groups remove-members G --member ID`, `lakemq groups handoffs G`"),
    ),
    "kafka-transactions": (
        ("`list`", "`lakemq transactions list`"),
        ("`describe --transactional-id ID`", "`lakemq transactions describe ID`"),
        ("`describe-producers --topic T --partition N`", "`lakemq describe-producers T N`"),
        ("`find-hanging`", "`lakemq transactions find-hanging --max-open-ms MS`"),
        ("`abort --topic T --partition N --start-offset O`", "`lakemq transactions abort ID`"),
        ("`forceTerminateTransaction --transactional-id ID`", "`lakemq transactions abort ID`"),
    ),
    "kafka-get-offsets": (
        ("`--topic T` (the default time, `--time latest`)", "`lakemq offsets T`"),
        ("`--time earliest`, `--time -2`", "`lakemq offsets T --time earliest`"),
        ("`--time MS`", "`lakemq offsets T --time TIME`"),
        ("`--time max-timestamp`, `--time -3`", "None. SQL: `lakemq sql QUERY` with `max(timestamp)` over `log`."),
        ("`--time earliest-local`, `latest-tiered`", "None: a topic has one store, so `--time earliest` is its start."),
        ("`--partitions 0,2`", "`lakemq offsets T --partition 0 --partition 2`"),
        ("`--topic-partitions T:0,U:1`", "`lakemq offsets T U`"),
        ("`--topic` as a regular expression", "None: name the topics."),
        ("`--exclude-internal-topics`", "None: there are no internal topics."),
    ),
    "kafka-producer-perf-test": (
        ("`--topic T --num-records N --record-size BYTES`", "`lakemq bench produce T --messages N --size BYTES`"),
        ("`--throughput N`", "`lakemq bench produce T --rate N`"),
        ("`--payload-file FILE`", "`lakemq bench produce T --payload-file FILE`"),
        ("`--payload-delimiter`", "None: a line of the file is a payload."),
        ("`--payload-monotonic`", "None. `lakemq bench produce T --keys N` sends keys in turn."),
        ("`--warmup-records N`", "`lakemq bench produce T --warmup N`"),
        ("`--producer-props K=V`", "`lakemq bench produce T --config K=V`"),
        ("`--transactional-id`, `--transaction-duration-ms`", "None"),
        ("`--print-metrics`", "`lakemq bench produce T --output json` has all figures."),
    ),
    "kafka-consumer-perf-test": (
        ("`--topic T --messages N`", "`lakemq bench consume T --messages N`"),
        ("`--group G`", "`lakemq bench consume T --group G`"),
        ("`--from-latest`", "`lakemq bench consume T --from latest`"),
        ("`--timeout MS`", "`lakemq bench consume T --timeout-ms MS`"),
        ("`--show-detailed-stats`, `--reporting-interval`", "`lakemq bench consume T`: a line each five seconds"),
        ("`--hide-header`", "`lakemq bench consume T --output json`"),
        ("`--fetch-size`, `--threads`", "None: start several commands with the same `--group`."),
        ("`kafka-e2e-latency`", "`lakemq bench consume T --from latest`, columns `delivery_...`"),
    ),
    "kcat": (
        ("`-L` (metadata)", "`lakemq topics list`, `lakemq topics describe T`"),
        ("`-Q -t T:P:MS` (offsets by time)", "`lakemq offsets T --time TIME`"),
        ("`-P -t T` (a message per line)", "`lakemq publish --topic T --format lines`"),
        ("`-P -K SEP`", "`lakemq publish --topic T --key-separator SEP`"),
        ("`-P -D SEP` (between messages)", "None: a line is a message, or a row of JSON, CSV or Parquet."),
        ("`-P -Z` (empty is null)", "None. In CSV an empty field is null: `lakemq publish FILE --topic T`"),
        ("`-P -T` (pass the input on)", "None: `tee` does it."),
        ("`-P -l FILE`", "`lakemq publish FILE --topic T --format lines`"),
        ("`-P -p N`", "`lakemq publish FILE --topic T --partition-column COLUMN`"),
        ("`-P -k KEY`, `-H NAME=VALUE`", "`lakemq publish FILE --topic T --key-column COLUMN --headers-column COLUMN`"),
        ("`-P -z CODEC`", "None: data files are compressed in the store."),
        ("`-C -t T -e` (to the end)", "`lakemq fetch T`"),
        ("`-C -t T` (go on)", "`lakemq tail T --follow`"),
        ("`-C -p N`", "`lakemq fetch T --partition N`"),
        ("`-C -o beginning`, `end`, `N`", "`lakemq fetch T --from N`"),
        ("`-C -o -N`", "`lakemq fetch T --from -N`"),
        ("`-C -o s@MS -o e@MS`", "`lakemq fetch T --from TIME --to TIME`"),
        ("`-C -o stored`", "`lakemq consume T --group G`"),
        ("`-C -c N`", "`lakemq fetch T --limit N`"),
        ("`-C -f FORMAT`", "`lakemq fetch T --print FORMAT`, also `tail` and `consume`"),
        ("`-C -K SEP`", "`lakemq fetch T --key-separator SEP`"),
        ("`-C -D SEP`", "`lakemq fetch T --print FORMAT`, with the separator at its end"),
        ("`-C -Z` (null as NULL)", "`lakemq fetch T --output table` shows `(null)`. `%S` of `--print` is -1."),
        ("`-C -J`", "`lakemq fetch T --output json`"),
        ("`-C -X isolation.level=read_uncommitted`", "`lakemq fetch T --isolation read_uncommitted`"),
        ("`-G GROUP T...`", "`lakemq consume T --group G --follow`"),
        ("`-s avro`, `-r REGISTRY`", "None: messages are printed as text, JSON or bytes."),
        ("`-X K=V`, `-F FILE`", "`lakemq --conf FILE`"),
        ("`-M` (a mock cluster)", "`lakemq init` makes a namespace in a folder at once."),
    ),
}
"""Tool -> (what it does there, our command or why there is none), as Markdown."""


def kafka_tools_section() -> str:
    """Return the section of the page as Markdown."""
    blocks = [
        "## Beside Kafka's tools",
        "Each thing that Kafka's tools and kcat do, and the command that does it here. *None* means that there is no "
        "such command.",
    ]
    for tool, rows in KAFKA_TOOLS.items():
        lines = [f"| {_escape(kafka_cell)} | {_escape(lakemq_cell)} |" for kafka_cell, lakemq_cell in rows]
        blocks += [f"### {tool}", "\n".join([f"| {tool} | lakemq |", "|---|---|", *lines])]
    return "\n\n".join(blocks)


def _escape(cell: str) -> str:
    return cell.replace("|", "\\|")
