"""LakeMQ: a partitioned, transactional message queue whose every bit of state is a Delta table.

    import lakemq
    mq = lakemq.connect("data/mq", create=True)

The layers, each importing only what stands below it:

    jobs      what is started: the `lakemq` command, spark-submit entry points, Airflow DAGs; they parse and call
    engine    by who runs it: `client` in users' processes, `sequencer` and `maintenance` where it is decided; what all
              of them share is `namespace`, and under it `protocol`, the pure core, without I/O, clock or chance
    tables    what is stored (`specs`), how (`storage`, the only I/O), and how that changes (`migrations`)

For users: `connect`, the errors in `lakemq.errors`, a Spark session in `lakemq.spark`; for who writes an assignor,
`lakemq.assignors`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakemq.engine.client.connection import Connection

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
    the object store. Raises NamespaceError, NewerFormat, InvalidConfig, InvalidRequest; IllegalState in a forked
    process.
    """
    # imported here so that `import lakemq`, which executors do too, stays free of what they may not have
    from lakemq.engine.client.arguments import file_path, flag, mapped, refused
    from lakemq.engine.client.connection import Connection
    from lakemq.engine.namespace.config import load_config
    from lakemq.engine.namespace.namespace import open_namespace
    from lakemq.errors import InvalidConfig

    place = file_path("path", path)
    if spark is not None and not (hasattr(spark, "catalog") and hasattr(spark, "sql")):  # pyspark may not be there
        raise refused("spark", spark, "a SparkSession")
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
        from lakemq.errors import NamespaceError
        from lakemq.tables.storage.catalog import DatabaseTaken, register

        try:
            register(spark, namespace.path, namespace.store)
        except DatabaseTaken as taken:
            raise NamespaceError(str(taken)) from None
    return connection
