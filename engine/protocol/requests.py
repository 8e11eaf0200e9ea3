"""What may be asked of the sequencer, and what it answers. Values only; they travel as JSON in a letter."""

from __future__ import annotations

from typing import Any

import msgspec

from .errors import Refusal


class Request(msgspec.Struct, frozen=True, tag_field="request", omit_defaults=True):
    """Base of all requests."""


class CreateTopic(Request, tag="create_topic"):
    topic: str
    partitions: int
    config: dict[str, Any] = {}
    subscriptions: list[str] = []


class AlterTopic(Request, tag="alter_topic"):
    """`config` sets keys, null resets one to its default; `partitions` and `subscriptions` replace what is there."""

    topic: str
    config: dict[str, Any] = {}
    partitions: int | None = None
    subscriptions: list[str] | None = None


class DeleteTopic(Request, tag="delete_topic"):
    topic: str


class DeleteRecords(Request, tag="delete_records"):
    """Partition -> offset before which all is deleted; -1 stands for the high watermark."""

    topic: str
    before: dict[int, int]


class InitProducer(Request, tag="init_producer"):
    """Ask for a producer id. A transactional id is refused until transactions are offered."""

    transactional_id: str | None = None
    timeout_ms: int = 60_000


class TopicRef(msgspec.Struct, frozen=True, array_like=True):
    """A topic as the client knew it when it hashed the keys."""

    topic: str
    topic_id: int
    partition_count: int


class DataFile(msgspec.Struct, frozen=True):
    """A file of message rows: `messages/<batch_id>.parquet`."""

    batch_id: str
    size_bytes: int
    record_count: int
    min_timestamp_ms: int
    max_timestamp_ms: int


class Ranges(msgspec.Struct, frozen=True):
    """Ranges of rows as columns of equal length, in the order in which they take their offsets.

    topic: index into the request's topics; file: index into its files, -1 for the rows that ride in the letter.
    """

    topic: list[int] = []
    partition: list[int] = []
    file: list[int] = []
    first_row: list[int] = []
    record_count: list[int] = []
    min_timestamp_ms: list[int] = []
    max_timestamp_ms: list[int] = []


class RefusedRows(msgspec.Struct, frozen=True):
    """Rows that cannot be messages: they become dead letters, the rest is published."""

    source: str
    file: int
    first_row: int
    record_count: int
    error: str
    reason: str


class ProducerSequences(msgspec.Struct, frozen=True):
    """Sequence of the first record per unit, a unit being all a request puts into one (topic, partition)."""

    producer_id: int
    producer_epoch: int
    topic: list[int]
    partition: list[int]
    base_sequence: list[int]


class ApplicationVersion(msgspec.Struct, frozen=True):
    """Delta's `txnAppId` and `txnVersion`, for one target: a version not above the last is not published again."""

    txn_app_id: str
    txn_version: int
    target: str


class Produce(Request, tag="produce"):
    """Publish rows of files; or, where it names no file, rows that ride in the letter from its row `first_row` on."""

    topics: list[TopicRef]
    ranges: Ranges
    metadata_step: int
    files: list[DataFile] = []
    refused: list[RefusedRows] = []
    producer: ProducerSequences | None = None
    application: ApplicationVersion | None = None
    first_row: int = 0


AnyRequest = CreateTopic | AlterTopic | DeleteTopic | DeleteRecords | InitProducer | Produce


class Result(msgspec.Struct, frozen=True, tag_field="outcome", omit_defaults=True):
    """Base of all results but Refusal."""


class Done(Result, tag="done"):
    pass


class TopicDone(Result, tag="topic"):
    topic_id: int
    partitions: int


class ProducerDone(Result, tag="producer"):
    producer_id: int
    producer_epoch: int


class Unit(msgspec.Struct, frozen=True, array_like=True):
    """What one request put into one partition: offsets base_offset .. base_offset + record_count, if it is in one piece."""

    topic: str
    partition: int
    base_offset: int
    record_count: int


class Published(Result, tag="published"):
    """`duplicate`: the same was published before and nothing was added; a unit's base_offset is then the first one's."""

    units: list[Unit]
    refused_count: int = 0
    duplicate: bool = False


AnyResult = Done | TopicDone | ProducerDone | Published | Refusal


class Letter(msgspec.Struct, frozen=True):
    """What one client puts at once: requests that are decided in one step, in order."""

    client_id: str
    number: int
    requests: list[AnyRequest]
    sent_at_ms: int


class Answer(msgspec.Struct, frozen=True):
    """The reply to a letter: one result per request."""

    client_id: str
    number: int
    step: int
    results: list[AnyResult]
