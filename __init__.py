"""LakeMQ: a partitioned, transactional message queue whose every bit of state is a Delta table.

    import lakemq
    mq = lakemq.connect("data/mq", create=True)

The layers, each importing only what stands below it:

    jobs      what is started: the `lakemq` command, spark-submit entry points, Airflow DAGs; they parse and call
    engine    publishing, fetching, the sequencer; `engine.protocol` is its pure core, without I/O, clock or chance
    tables    what is stored: one spec per table, the only Delta I/O (store), the only mailbox I/O (mailbox)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakemq.engine.connection import Connection

__version__ = "0.1.0"
__all__ = ["connect"]


def connect(
    path: str,
    *,
    spark: SparkSession | None = None,
    create: bool = False,
    shared_with_group: bool = False,
    conf: str | None = None,
    config: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Connection:
    """The namespace at a path or URI.

    spark: adds the DataFrame side, and registers the tables and views. create: make the namespace if it is not there;
    shared_with_group: and all in it for the group of its folder to read and write, whatever anybody's umask.
    conf: a settings file (else $LAKEMQ_CONF); config: settings that win over it. storage_options: passed through to
    the object store. Raises NamespaceError, NewerFormat, InvalidConfig; IllegalState in a forked process.
    """
    # imported here so that `import lakemq`, which executors do too, stays free of what they may not have
    from lakemq.engine.arguments import file_path, flag, mapped
    from lakemq.engine.config import load_config
    from lakemq.engine.connection import Connection
    from lakemq.engine.errors import InvalidConfig
    from lakemq.engine.namespace import open_namespace

    place = file_path("path", path)
    settings = load_config(
        None if conf is None else file_path("conf", conf, InvalidConfig),
        None if config is None else mapped("config", config, InvalidConfig),
    )
    options = {} if storage_options is None else mapped("storage_options", storage_options, InvalidConfig)
    for key, value in options.items():
        if not isinstance(value, str):  # which may be secret
            raise InvalidConfig(f"storage_options[{key!r}] is not text.", found=type(value).__name__)
    namespace = open_namespace(
        place, settings, options, flag("create", create), flag("shared_with_group", shared_with_group)
    )
    connection = Connection(namespace, spark)
    if spark is not None:
        from lakemq.engine.errors import NamespaceError
        from lakemq.tables.catalog import DatabaseTaken, register

        try:
            register(spark, namespace.path, namespace.store)
        except DatabaseTaken as taken:
            raise NamespaceError(str(taken)) from None
    return connection
