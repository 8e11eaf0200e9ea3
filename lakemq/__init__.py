"""LakeMQ: a partitioned, transactional message queue whose every bit of state is a Delta table.

    import lakemq
    mq = lakemq.connect("data/mq", create=True)

The layers, each importing only what stands below it:

    jobs      entry points: the `lakemq` command, spark-submit scripts, Airflow DAGs. They parse arguments and call
    engine    by process: `client` runs in users' processes, `sequencer` and `maintenance` run the namespace. They share
              `namespace`, and under it `protocol`, the pure core without I/O, clock or chance
    tables    what is stored (`specs`), and how (`storage`, the only I/O)

For users: `connect`, what it leads to (`Connection`, consumers, producers, `RebalanceListener`), the errors in
`lakemq.errors`, a Spark session in `lakemq.spark`. For authors of assignors: `lakemq.assignors`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakemq import assignors, errors
    from lakemq.engine.client.connection import Connection
    from lakemq.engine.client.consume.batch import ConsumerBatch
    from lakemq.engine.client.consume.consumer import Consumer
    from lakemq.engine.client.consume.group_consumer import GroupConsumer
    from lakemq.engine.client.consume.options import RebalanceListener
    from lakemq.engine.client.consume.position_consumer import AssignedConsumer
    from lakemq.engine.client.consume.queue_consumer import QueueConsumer
    from lakemq.engine.client.fetch.fetch_result import FetchResult, Message
    from lakemq.engine.client.producer.delivery import RecordFuture, RecordMetadata
    from lakemq.engine.client.producer.failures import FlushReport
    from lakemq.engine.client.producer.producer import Producer, TransactionalProducer

__version__ = "0.1.0"
__all__ = [
    "AssignedConsumer",
    "Connection",
    "Consumer",
    "ConsumerBatch",
    "FetchResult",
    "FlushReport",
    "GroupConsumer",
    "Message",
    "Producer",
    "QueueConsumer",
    "RebalanceListener",
    "RecordFuture",
    "RecordMetadata",
    "TransactionalProducer",
    "assignors",
    "connect",
    "errors",
]

_CLIENT = "lakemq.engine.client"
_MODULES = {
    "AssignedConsumer": f"{_CLIENT}.consume.position_consumer",
    "Connection": f"{_CLIENT}.connection",
    "Consumer": f"{_CLIENT}.consume.consumer",
    "ConsumerBatch": f"{_CLIENT}.consume.batch",
    "FetchResult": f"{_CLIENT}.fetch.fetch_result",
    "FlushReport": f"{_CLIENT}.producer.failures",
    "GroupConsumer": f"{_CLIENT}.consume.group_consumer",
    "Message": f"{_CLIENT}.fetch.fetch_result",
    "Producer": f"{_CLIENT}.producer.producer",
    "QueueConsumer": f"{_CLIENT}.consume.queue_consumer",
    "RebalanceListener": f"{_CLIENT}.consume.options",
    "RecordFuture": f"{_CLIENT}.producer.delivery",
    "RecordMetadata": f"{_CLIENT}.producer.delivery",
    "TransactionalProducer": f"{_CLIENT}.producer.producer",
}


if not TYPE_CHECKING:  # for type checkers there are the names above, and no others

    def __getattr__(name: str) -> Any:
        """Import a public name on first use, because executors import lakemq without the client's dependencies."""
        if name in _MODULES:
            return getattr(import_module(_MODULES[name]), name)
        if name in ("assignors", "errors", "spark"):
            return import_module(f"lakemq.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def connect(
    path: str,
    *,
    spark: Any = None,  # pyspark may be missing: then strict checkers would not know the type of this function
    create: bool = False,
    shared_with_group: bool = False,
    conf: str | None = None,
    config: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Connection:
    """Connect to the namespace at a path or URI.

    Args:
        path: folder or object-store URI of the namespace.
        spark: a SparkSession, classic or of Spark Connect, to publish and fetch DataFrames. It gets the tables and
            views, and the format `lakemq`.
        create: create the namespace if it does not exist.
        shared_with_group: with `create`, let the group of the folder read and write all files, regardless of umasks.
        conf: a settings file. Default: $LAKEMQ_CONF.
        config: settings that override the file.
        storage_options: options for the object store, such as credentials.

    Returns:
        A connection. Close it, or use it as a context manager.

    Raises:
        NamespaceError: the namespace does not exist, or cannot be used.
        NewerFormat: a newer version of LakeMQ has written it.
        InvalidConfig, InvalidRequest: an argument is not valid.
        IllegalState: in a forked process.

    Example:
        >>> mq = lakemq.connect("data/shop", create=True)  # doctest: +SKIP
    """
    # imported here because executors import lakemq without the client's dependencies
    from lakemq.engine.client.arguments import invalid_argument, parse_flag, parse_mapping, parse_path
    from lakemq.engine.client.connection import Connection
    from lakemq.engine.namespace.config import load_config
    from lakemq.engine.namespace.namespace import open_namespace
    from lakemq.errors import InvalidConfig

    place = parse_path("path", path)
    if spark is not None and not (hasattr(spark, "catalog") and hasattr(spark, "sql")):  # pyspark may be missing
        raise invalid_argument("spark", spark, "a SparkSession")
    settings = load_config(
        None if conf is None else parse_path("conf", conf, InvalidConfig),
        None if config is None else parse_mapping("config", config, InvalidConfig),
    )
    options = {} if storage_options is None else parse_mapping("storage_options", storage_options, InvalidConfig)
    for key, value in options.items():
        if not isinstance(value, str):  # the error shows only its type, because it may be secret
            raise InvalidConfig(f"storage_options[{key!r}] is not text.", found=type(value).__name__)
    namespace = open_namespace(
        place, settings, options, parse_flag("create", create), parse_flag("shared_with_group", shared_with_group)
    )
    connection = Connection(namespace, spark)
    if spark is not None:
        from lakemq.engine.client.live_tables import register_live_tables
        from lakemq.errors import NamespaceError
        from lakemq.tables.storage.delta import catalog

        try:
            catalog.register(spark, namespace.path, namespace.store)
        except catalog.DatabaseTaken as taken:
            raise NamespaceError(str(taken)) from None
        import_module(f"{_CLIENT}.format.source").register(spark)  # by its name, because the format connects, too
        again = partial(connect, namespace.path, storage_options=namespace.storage_options)
        register_live_tables(spark, namespace.path, again)
    return connection
