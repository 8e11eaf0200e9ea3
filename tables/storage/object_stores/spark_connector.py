"""Configure Spark's own connectors to S3 (S3A) and Azure (ABFS) with the storage options of a namespace.

Spark reads and writes Delta tables, fetches and checkpoints through Hadoop, not through obstore. The settings go into
the Hadoop configuration of the running session, and from there to the executors. They are no settings of Spark: these
would show in `SET`, and as arguments of processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_S3_SCHEMES = ("s3", "s3a")
_AZURE_SCHEMES = ("abfs", "abfss")
_ACCOUNT_KEYS = ("storage_account_key", "storage_access_key", "access_key", "account_key", "storage_master_key")
_FILE_SYSTEM = "org.apache.hadoop.fs.s3a.S3AFileSystem"
_ANONYMOUS = "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"

_SETTINGS = {
    "access_key_id": "access.key",
    "secret_access_key": "secret.key",
    "session_token": "session.token",
    "token": "session.token",
    "endpoint_url": "endpoint",
    "endpoint": "endpoint",
    "region": "endpoint.region",
    "default_region": "endpoint.region",
}
"""Name of an option without its prefix -> the setting of S3A with the same meaning and value."""


def configure_spark(spark: SparkSession, root: str, options: Mapping[str, str]) -> None:
    """Configure S3A or ABFS for a namespace. Other stores keep the settings that the session has.

    A session of Spark Connect has no Hadoop configuration on this machine, and is left alone.

    Args:
        spark: the session.
        root: URI of the namespace.
        options: its storage options, spelled as in delta-rs.
    """
    url = urlsplit(root)
    context = getattr(spark, "_sc", None)
    if context is None:
        return
    settings: dict[str, str] = {}
    if url.scheme in _S3_SCHEMES:
        settings = build_s3a_settings(url.netloc, options)
    elif url.scheme in _AZURE_SCHEMES:
        settings = build_abfs_settings(url.hostname or "", options)
    hadoop = context._jsc.hadoopConfiguration()
    for key, value in settings.items():
        hadoop.set(key, value)
    # some platforms have their own file system for s3://
    if url.scheme == "s3" and hadoop.get("fs.s3.impl") is None:
        hadoop.set("fs.s3.impl", _FILE_SYSTEM)


def build_s3a_settings(bucket: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return settings of S3A for one bucket, so that a session can use buckets with other credentials beside it."""
    named = {key.lower().removeprefix("aws_"): value for key, value in options.items()}
    settings = {setting: named[name] for name, setting in _SETTINGS.items() if name in named}
    if _is_true(named, "skip_signature"):
        settings["aws.credentials.provider"] = _ANONYMOUS
    if "endpoint" in settings:
        # obstore puts the bucket into the path unless it is told otherwise; S3A does the opposite
        settings["path.style.access"] = str(not _is_true(named, "virtual_hosted_style_request")).lower()
        settings["connection.ssl.enabled"] = str(not settings["endpoint"].startswith("http://")).lower()
    return {f"fs.s3a.bucket.{bucket}.{setting}": value for setting, value in settings.items()}


def build_abfs_settings(host: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return settings of ABFS for one account, whose key the options hold. Other credentials give none.

    Args:
        host: host of the account, `account.dfs.core.windows.net`.
        options: storage options, spelled as in delta-rs.
    """
    named = {key.lower().removeprefix("azure_"): value for key, value in options.items()}
    keys = [named[name] for name in _ACCOUNT_KEYS if name in named]
    if not keys:
        return {}
    return {f"fs.azure.account.auth.type.{host}": "SharedKey", f"fs.azure.account.key.{host}": keys[0]}


def _is_true(options: Mapping[str, str], name: str) -> bool:
    return options.get(name, "").lower() in ("1", "true", "on", "yes")
