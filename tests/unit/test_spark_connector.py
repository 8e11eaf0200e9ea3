"""Storage options in delta-rs's spelling become settings of S3A for one bucket, and of ABFS for one account."""

import pytest

from lakemq.tables.storage.object_stores.store_options import build_abfs_settings, build_s3a_settings

PREFIX = "fs.s3a.bucket.b."


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({}, {}),
        (
            {"AWS_ACCESS_KEY_ID": "id", "aws_secret_access_key": "secret", "session_token": "token"},
            {"access.key": "id", "secret.key": "secret", "session.token": "token"},
        ),
        ({"AWS_REGION": "eu-central-1"}, {"endpoint.region": "eu-central-1"}),
        (
            {"AWS_ENDPOINT_URL": "http://store:9000", "AWS_ALLOW_HTTP": "true"},
            {"endpoint": "http://store:9000", "path.style.access": "true", "connection.ssl.enabled": "false"},
        ),
        (
            {"endpoint": "https://store", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true"},
            {"endpoint": "https://store", "path.style.access": "false", "connection.ssl.enabled": "true"},
        ),
        (
            {"AWS_SKIP_SIGNATURE": "true"},
            {"aws.credentials.provider": "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"},
        ),
        ({"AZURE_STORAGE_ACCOUNT_KEY": "secret", "timeout": "9s"}, {}),
    ],
)
def test_options_of_s3_become_settings_of_the_bucket(options: dict[str, str], settings: dict[str, str]) -> None:
    assert build_s3a_settings("b", options) == {f"{PREFIX}{name}": value for name, value in settings.items()}


@pytest.mark.parametrize("name", ["AZURE_STORAGE_ACCOUNT_KEY", "azure_storage_access_key", "account_key"])
def test_account_key_of_azure_becomes_settings_of_spark(name: str) -> None:
    host = "me.dfs.core.windows.net"
    settings = {f"fs.azure.account.auth.type.{host}": "SharedKey", f"fs.azure.account.key.{host}": "secret"}
    assert build_abfs_settings(host, {name: "secret", "AZURE_STORAGE_ACCOUNT_NAME": "me"}) == settings


def test_other_credentials_of_azure_leave_the_settings_of_the_session() -> None:
    assert build_abfs_settings("me.dfs.core.windows.net", {"AZURE_STORAGE_SAS_TOKEN": "sv=1"}) == {}
