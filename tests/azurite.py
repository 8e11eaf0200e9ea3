"""Azure's blob service for tests: Azurite, Microsoft's emulator. npm fetches it once into the user's cache folder.

python tests/azurite.py    fetch it if it is missing, and print where it is
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from fetched_programs import fetch_once, find_free_port, run_server

VERSION = "3.37.0"
VARIABLE = "LAKEMQ_TEST_AZURE"
"""Environment variable with the path of the program. Tests of Azure run only if it is set."""

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The emulator's only account, which its documentation publishes."""
CONTAINER = "container"
HOST = f"{ACCOUNT}.dfs.core.windows.net"
"""The account's host in paths of Hadoop's connector."""


@dataclass(frozen=True)
class AzureServer:
    """A running server with one container. options: the storage options of a client."""

    url: str
    secret = KEY
    secret_option = "AZURE_STORAGE_ACCOUNT_KEY"

    @property
    def options(self) -> dict[str, str]:
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            self.secret_option: KEY,
            "AZURE_STORAGE_ENDPOINT": f"{self.url}/{ACCOUNT}",
            "allow_http": "true",
        }

    def at(self, url: str) -> AzureServer:
        """Return the same server as it is reached at another URL, such as a proxy's."""
        return replace(self, url=url)

    def path(self, folder: str) -> str:
        """Return the path of a folder in the container."""
        return f"az://{CONTAINER}/{folder}"

    def spark_path(self, folder: str) -> str:
        """Return the path of a folder in the container, as Hadoop's connector names it."""
        return f"abfs://{CONTAINER}@{HOST}/{folder}"

    @property
    def spark_settings(self) -> dict[str, str]:
        """What an emulator needs of Spark, and an account of Azure does not."""
        settings = {
            # Azurite has no DFS endpoint. With an account that has none either, the connector takes that of blobs.
            f"fs.azure.fns.account.service.type.{HOST}": "BLOB",
            "fs.azure.account.hns.enabled": "false",
            "fs.azure.abfs.endpoint": self.url.removeprefix("http://"),
            "fs.azure.always.use.https": "false",
            # the default one cannot do without TLS
            "fs.azure.networking.library": "JDK_HTTP_URL_CONNECTION",
            # the connector sends figures of itself when it closes, which an emulator refuses for ten minutes
            "fs.azure.metrics.collection.enabled": "false",
        }
        return {f"spark.hadoop.{key}": value for key, value in settings.items()}


def fetch() -> Path:
    """Return the program. npm checks each package against the hash in its registry."""

    def install(folder: Path) -> None:
        command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", f"azurite@{VERSION}"]
        subprocess.run(command, cwd=folder, stdout=sys.stderr, check=True)

    return fetch_once(f"azurite-{VERSION}", "npm", "node_modules/.bin/azurite-blob", install)


@contextmanager
def serve_azurite(program: str, folder: Path) -> Iterator[AzureServer]:
    """Run the server until the block ends. It keeps objects in memory."""
    port = find_free_port()
    command = [program, "--silent", "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"]
    command += ["--blobHost", "127.0.0.1", "--blobPort", str(port)]
    with run_server(command, port, folder):
        server = AzureServer(f"http://127.0.0.1:{port}")
        _make_container(server)
        yield server


def _make_container(server: AzureServer) -> None:
    """Make the container by a request of the service's REST interface, signed with the account's key."""
    now = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    signed_headers = {"x-ms-date": now, "x-ms-version": "2021-08-06"}
    lines = [f"{name}:{value}" for name, value in signed_headers.items()]
    resource = f"/{ACCOUNT}/{ACCOUNT}/{CONTAINER}\nrestype:container"
    text = "\n".join(["PUT", *[""] * 11, *lines, resource])
    signature = base64.b64encode(hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()).decode()
    request = urllib.request.Request(
        f"{server.url}/{ACCOUNT}/{CONTAINER}?restype=container",
        method="PUT",
        headers={**signed_headers, "Authorization": f"SharedKey {ACCOUNT}:{signature}", "Content-Length": "0"},
    )
    urllib.request.urlopen(request, timeout=120).close()


if __name__ == "__main__":
    print(fetch())
