"""Open a store of obstore with options that are spelled as in delta-rs; keep its secrets; tell Spark of it."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus, urlsplit

if TYPE_CHECKING:
    from obstore.store import ObjectStore
    from pyspark.sql import SparkSession


# Keep credentials out of texts that people read.


_SECRET_OPTION = re.compile(r"key|secret|token|sas|password|credential|proxy_url", re.IGNORECASE)
_SECRET_VARIABLE = re.compile(r"(AWS|AZURE|GOOGLE)_.*(SECRET|TOKEN|SAS|PASSWORD|KEY)")
"""Variables of the environment from which the libraries of stores take credentials that are no options."""
_SIGNATURE = re.compile(
    r"(?i)\b((?:sig|signature|x-amz-signature|x-amz-security-token|authorization)\s*[=:]\s*)[^\s&\"'<>]+"
)
_USER_OF_URL = re.compile(r"(://)[^/@\s'\"]*:(?!\d{1,5}/)(?:[^/@\s'\"]+|[^@\s'\"]+)@")
"""A password may have a slash that is not quoted, as keys of AWS do. Digits before a slash are a port."""
_SHORTEST = 4
"""Length below which a value is no secret: hiding `1` or `on` would only garble texts."""

_FLAGS = {"true", "false"}
HIDDEN = "***"


def has_user(url: str) -> bool:
    """Return whether a URL has a user and a password, also one with a slash that is not quoted."""
    return _USER_OF_URL.search(url) is not None


def hide_secrets(text: str, options: Mapping[str, str]) -> str:
    """Return the text with stars in place of secrets.

    Secrets are credentials among the storage options and in the environment, signatures of requests, and users and
    passwords in URLs.
    """
    named = [value for name, value in options.items() if _SECRET_OPTION.search(name)]
    named += [value for name, value in os.environ.items() if _SECRET_VARIABLE.fullmatch(name)]
    secrets = [value for value in named if len(value) >= _SHORTEST and value.lower() not in _FLAGS]
    spellings = {spelling for value in secrets for spelling in (value, quote(value, safe=""), quote_plus(value))}
    for spelling in sorted(spellings, key=len, reverse=True):
        text = text.replace(spelling, HIDDEN)
    return _USER_OF_URL.sub(rf"\g<1>{HIDDEN}@", _SIGNATURE.sub(rf"\g<1>{HIDDEN}", text))


# Options of stores, by the kind of the store.


# A request that hangs ends after 9 s, and none is repeated later than 8 s after the first, after a pause of 2 s at
# most: 8 + 2 + 9 is below 20 s, the time within which every wait for a small request must end.
_RETRY: Mapping[str, Any] = {
    "max_retries": 20,
    "retry_timeout": timedelta(seconds=8),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2), "base": 2},
}
_TIMEOUTS = {"connect_timeout": "3s", "timeout": "9s"}
_BULK_TIMEOUT = "60s"
"""Parts of large objects may take longer on a slow network."""

DELTA_DEFAULTS = {
    "retry_timeout": "10s",
    "max_retries": "20",
    "backoff_config.max_backoff": "2s",
    "connect_timeout": "3s",
    "timeout": "15s",
}
"""The same for delta-rs, whose retries would go on for three minutes. Some of its requests read whole data files, so
they have more time.
"""

# fmt: off
_CLIENT_OPTIONS = {
    "allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type", "http1_only",
    "http2_only", "pool_idle_timeout", "pool_max_idle_per_host", "proxy_url", "proxy_ca_certificate",
    "proxy_excludes", "timeout", "user_agent",
}
# fmt: on
# fmt: off
_S3 = {
    "access_key_id", "checksum_algorithm", "conditional_put", "container_authorization_token_file",
    "container_credentials_full_uri", "container_credentials_relative_uri", "default_region", "disable_bulk_delete",
    "disable_tagging", "endpoint", "endpoint_url", "imdsv1_fallback", "metadata_endpoint", "region",
    "request_payer", "role_arn", "role_session_name", "secret_access_key", "server_side_encryption",
    "session_token", "skip_signature", "sse_bucket_key_enabled", "sse_kms_key_id", "sts_endpoint", "token",
    "unsigned_payload", "virtual_hosted_style_request", "web_identity_token_file",
}
# fmt: on
# fmt: off
_GCS = {
    "service_account", "service_account_path", "service_account_key", "application_credentials", "skip_signature",
    "base_url", "bearer_token",
}
# fmt: on
# fmt: off
_AZURE = {
    "storage_account_name", "account_name", "storage_account_key", "storage_access_key", "access_key",
    "account_key", "storage_master_key", "storage_client_id", "client_id", "storage_client_secret", "client_secret",
    "storage_tenant_id", "tenant_id", "storage_sas_token", "storage_sas_key", "sas_token", "storage_token",
    "authority_host", "storage_authority_host", "storage_use_emulator", "use_emulator", "storage_endpoint",
    "endpoint", "msi_endpoint", "identity_endpoint", "object_id", "msi_resource_id", "federated_token_file",
    "use_azure_cli", "skip_signature", "disable_tagging", "use_fabric_endpoint",
}
# fmt: on
STORES: Mapping[str, tuple[str, Collection[str]]] = {
    **dict.fromkeys(("s3", "s3a"), ("aws_", _S3)),
    **dict.fromkeys(("gs", "gcs"), ("google_", _GCS)),
    **dict.fromkeys(("abfs", "abfss", "az"), ("azure_", _AZURE)),
}
"""Scheme of a URI -> prefix of its options, and their names without it."""


def connect(root: str, options: Mapping[str, str]) -> tuple[ObjectStore, ObjectStore]:
    """Return the store at a URI, for small requests and for parts of large objects. Nothing is asked of it yet.

    Options that the store does not know are ignored: they are for Delta, or for other stores.

    Raises ValueError if an option cannot be used.
    """
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    prefix, known_names = STORES[urlsplit(root).scheme]
    config, client = _split_options(options, prefix, known_names)
    # obstore knows one spelling; the paths that are shown keep the user's
    url = re.sub("^gcs:", "gs:", root)
    if prefix == "azure_":
        _check_account(url, config)
    # the options of three stores are one mapping here, which the types of obstore tell apart
    arguments: dict[str, Any] = {"config": config, "retry_config": _RETRY}
    clients: list[dict[str, Any]] = [{**_TIMEOUTS, **client}, {**_TIMEOUTS, "timeout": _BULK_TIMEOUT, **client}]
    try:
        small, bulk = (from_url(url, **(arguments | {"client_options": options})) for options in clients)
    except (BaseError, ValueError) as error:
        text = " ".join(str(error).partition("Debug source:")[0].split())
        raise ValueError(f"storage options: {hide_secrets(text, options)}") from None
    return small, bulk


def _split_options(
    options: Mapping[str, str], prefix: str, known_names: Collection[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the options of the store, with its prefix, and those of its HTTP client."""
    config: dict[str, str] = {}
    client: dict[str, str] = {}
    for key, value in options.items():
        name = key.lower().removeprefix(prefix)
        if name in _CLIENT_OPTIONS:
            client[name] = value
        elif name in known_names:
            config[f"{prefix}{name}"] = value
    return config, client


def _check_account(url: str, config: Mapping[str, str]) -> None:
    names = ("azure_storage_account_name", "azure_account_name")
    if "@" not in urlsplit(url).netloc and not any(config.get(name) for name in names):
        raise ValueError("storage option AZURE_STORAGE_ACCOUNT_NAME: found none, expected the name of the account")


# Configure Spark's own connectors to S3 (S3A) and Azure (ABFS) with the storage options of a namespace.
#
# Spark reads and writes Delta tables, fetches and checkpoints through Hadoop, not through obstore. The settings go into
# the Hadoop configuration of the running session, and from there to the executors. They are no settings of Spark: these
# would show in `SET`, and as arguments of processes.


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
