"""Publishes: docs/semantics.md A9, D6, D7, D9, D18, D20, F."""

from stateful.model import producers, transactions
from stateful.model.namespace import Namespace, Refused

from lakemq.engine.protocol.values.log import Produce, Published, Unit

Messages = dict[tuple[int, int], list[str]]
"""(index of topic, partition) -> the messages of the request for it, in order."""


def produce(model: Namespace, request: Produce, rows: list[list[str]]) -> Published:
    """rows: the messages of each file, or of the letter."""
    ref = request.transaction
    if ref is None:
        producers.check_outside(model, request.producer)
    else:
        transactions.check_writer(model, ref)
        if request.rejected:
            raise Refused("INVALID_RECORD")
    version = request.application
    if version and version.txn_version <= model.versions.get((version.txn_app_id, version.target), -1):
        return Published([], duplicate=True)
    messages = _messages(request, rows)
    appended = producers.find_appended_before(model, request, messages)
    rejected = [rows[r.file][r.first_row + i] for r in request.rejected for i in range(r.record_count)]
    rejected_before = bool(rejected) and producers.is_rejection_repeated(model, request, len(rejected))
    units = {unit: appended.get(unit) for unit in sorted(messages)}
    if (
        (units or rejected)
        and all(offset is not None for offset in units.values())
        and (rejected_before or not rejected)
    ):
        return Published(_units(request, units, messages), len(rejected), duplicate=True)
    _check_fresh(model, request)
    transaction = transactions.part(model, ref) if ref else None
    for unit, values in messages.items():
        if appended.get(unit) is None:
            log = model.topics[request.topics[unit[0]].topic_id].logs[unit[1]]
            units[unit] = offset = log.add(values, transaction)
            producers.remember(model, request, unit, len(values), offset)
    if rejected and not rejected_before:
        model.rejected += rejected
        producers.remember_rejection(model, request, len(rejected))
    if version:
        model.versions[version.txn_app_id, version.target] = version.txn_version
    return Published(_units(request, units, messages), len(rejected))


def _messages(request: Produce, rows: list[list[str]]) -> Messages:
    messages: Messages = {}
    r = request.ranges
    columns = zip(r.topic_index, r.partition, r.file, r.first_row, r.record_count, strict=True)
    for topic, partition, file, first, count in columns:
        for row in range(first, first + count):
            messages.setdefault((topic, partition), []).append(rows[file][row])
    return messages


def _check_fresh(model: Namespace, request: Produce) -> None:
    if model.routing_step > request.metadata_step:
        raise Refused("STALE_TOPIC_METADATA")
    for ref in request.topics:
        topic = model.topics[ref.topic_id]
        if not topic.active or topic.partitions != ref.partition_count:
            raise Refused("STALE_TOPIC_METADATA")
    if any(file.file_id in model.lost_files for file in request.files):
        raise Refused("FILE_MISSING")


def _units(request: Produce, offsets: dict[tuple[int, int], int | None], messages: Messages) -> list[Unit]:
    return [
        Unit(request.topics[topic].topic, partition, offset or 0, len(messages[topic, partition]))
        for (topic, partition), offset in offsets.items()
    ]
