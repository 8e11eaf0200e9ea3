"""List the pages of the API reference. mkdocstrings fills them from the docstrings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class ApiPage:
    """A page of the API reference.

    Attributes:
        title: heading of the page.
        objects: dotted names of what it documents, in order.
        introduction: how you get the objects.
    """

    title: str
    objects: tuple[str, ...]
    introduction: str


_CLIENT = "lakemq.engine.client"

API_PAGES: dict[str, ApiPage] = {
    "api/connection.md": ApiPage(
        "Connect",
        ("lakemq.connect", f"{_CLIENT}.connection.Connection", f"{_CLIENT}.log_access.LogAccess"),
        "Everything starts with `lakemq.connect`. It returns a connection, which is `mq` on all pages.",
    ),
    "api/topics.md": ApiPage(
        "Topics", (f"{_CLIENT}.topics.Topics", f"{_CLIENT}.topics.TopicDescription"), "You get it as `mq.topics`."
    ),
    "api/producers.md": ApiPage(
        "Producers",
        (
            f"{_CLIENT}.producer.record_producer.RecordProducer",
            f"{_CLIENT}.producer.producer.Producer",
            f"{_CLIENT}.producer.producer.TransactionalProducer",
        ),
        "`mq.producer()` returns a producer, `mq.producer('an-id')` a transactional one.",
    ),
    "api/consumers.md": ApiPage(
        "Consumers",
        (
            f"{_CLIENT}.consume.consumer.Consumer",
            f"{_CLIENT}.consume.position_consumer.PositionConsumer",
            f"{_CLIENT}.consume.position_consumer.AssignedConsumer",
            f"{_CLIENT}.consume.group_consumer.MemberConsumer",
            f"{_CLIENT}.consume.group_consumer.GroupConsumer",
            f"{_CLIENT}.consume.queue_consumer.QueueConsumer",
            f"{_CLIENT}.consume.batch.ConsumerBatch",
            f"{_CLIENT}.consume.batch.Ownership",
            f"{_CLIENT}.consume.batch.QueueBatch",
            f"{_CLIENT}.consume.options.RebalanceListener",
        ),
        "`mq.consumer(...)` returns a consumer: of assigned partitions, of a group, or of a queue group.",
    ),
    "api/aio.md": ApiPage(
        "asyncio",
        (
            "lakemq.aio.connect",
            "lakemq.aio.AsyncConnection",
            "lakemq.aio.AsyncProducer",
            "lakemq.aio.AsyncConsumer",
            "lakemq.aio.AsyncQueueConsumer",
        ),
        "`async with lakemq.aio.connect(path) as mq` gives the connection.",
    ),
    "api/testing.md": ApiPage(
        "Testing",
        (
            "lakemq.testing.MovableClock",
            "lakemq.testing.wait_until",
            "lakemq.testing.wait_until_idle",
            "lakemq.testing.read_all",
            "lakemq.testing.read_dead_letters",
            "lakemq.testing.DeadLetter",
            "lakemq.testing.serve",
        ),
        "pytest's fixture `mq` gives a connection, and `mq_clock` its clock.",
    ),
    "api/groups.md": ApiPage("Groups", (f"{_CLIENT}.groups.groups.Groups",), "You get it as `mq.groups`."),
    "api/streams.md": ApiPage(
        "Micro-batches", (f"{_CLIENT}.consume.group_stream.GroupStream",), "`mq.stream(...)` returns it."
    ),
    "api/fetch.md": ApiPage(
        "Fetch",
        (f"{_CLIENT}.fetch.fetch_result.FetchResult", f"{_CLIENT}.fetch.fetch_result.Message"),
        "`mq.fetch(...)` returns a result, which yields messages.",
    ),
    "api/transactions.md": ApiPage(
        "Transactions",
        (
            f"{_CLIENT}.transactions.operations.Transactions",
            f"{_CLIENT}.transactions.operations.TransactionInfo",
            f"{_CLIENT}.transactions.operations.ProducerInfo",
        ),
        "You get it as `mq.transactions`. It inspects and aborts; `mq.producer('an-id')` and `mq.transaction` write.",
    ),
    "api/delayed.md": ApiPage(
        "Delayed messages",
        (
            f"{_CLIENT}.delayed.DelayedMessages",
            f"{_CLIENT}.delayed.DelayedInfo",
            f"{_CLIENT}.delayed.RescheduleResult",
        ),
        "You get it as `mq.delayed`.",
    ),
    "api/dead-letters.md": ApiPage(
        "Dead letters",
        (
            f"{_CLIENT}.dead_letters.DeadLetters",
            f"{_CLIENT}.dead_letters.DeadLetterCount",
            f"{_CLIENT}.dead_letters.Redriven",
        ),
        "You get it as `mq.dead_letters`.",
    ),
    "api/spark.md": ApiPage(
        "lakemq.spark",
        ("lakemq.jobs.session.spark_session", f"{_CLIENT}.format.source.register"),
        "Import both from `lakemq.spark`.",
    ),
    "api/errors.md": ApiPage("lakemq.errors", ("lakemq.engine.protocol.errors",), "Import them from `lakemq.errors`."),
    "api/assignors.md": ApiPage("lakemq.assignors", ("lakemq.assignors",), "For authors of assignors."),
}


def build_api_page(page: ApiPage) -> str:
    """Return the Markdown of a page, with an instruction to mkdocstrings per object."""
    return "\n\n".join([f"# {page.title}", page.introduction, *(f"::: {name}" for name in page.objects)]) + "\n"


def list_objects() -> Iterator[str]:
    """Yield the dotted names of everything that the reference documents."""
    for page in API_PAGES.values():
        yield from page.objects
