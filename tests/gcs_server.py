"""A Google Cloud Storage server for tests: fake-gcs-server with the XML API in front, built by Go once and kept.

The program is in tests/gcs_xml_api, which says what it adds. The user's cache folder keeps it.

python tests/gcs_server.py    build it if it is missing, and print where it is
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from fetched_programs import fetch_once, find_free_port, run_server

VERSION = "1.56.1"
MODULE = f"github.com/fsouza/fake-gcs-server@v{VERSION}"
SOURCES = sorted((Path(__file__).parent / "gcs_xml_api").glob("*.go"))
VARIABLE = "LAKEMQ_TEST_GCS"
"""Environment variable with the path of the program. Tests of Google Cloud Storage run only if it is set."""

BUCKET = "bucket"
PRIVATE_KEY = "a-private-key-that-stays-hidden"


@dataclass(frozen=True)
class GcsServer:
    """A running server with one bucket. options: the storage options of a client."""

    url: str
    secret = PRIVATE_KEY
    secret_option = "GOOGLE_SERVICE_ACCOUNT_KEY"

    @property
    def options(self) -> dict[str, str]:
        # the account names the server; obstore and delta-rs have no other option for it that both know
        account = {
            "gcs_base_url": self.url,
            "disable_oauth": True,
            "client_email": "",
            "private_key": PRIVATE_KEY,
            "private_key_id": "",
        }
        return {self.secret_option: json.dumps(account), "allow_http": "true"}

    def at(self, url: str) -> GcsServer:
        """Return the same server as it is reached at another URL, such as a proxy's."""
        return replace(self, url=url)

    def path(self, folder: str) -> str:
        """Return the path of a folder in the bucket."""
        return f"gs://{BUCKET}/{folder}"


def build() -> Path:
    """Return the program. Go checks the sources of fake-gcs-server against its public checksums."""

    def install(folder: Path) -> None:
        for source in SOURCES:
            shutil.copy(source, folder)
        for arguments in (["mod", "init", "fakegcs"], ["get", MODULE], ["build", "-ldflags=-s -w", "-o", "fake-gcs"]):
            subprocess.run(["go", *arguments], cwd=folder, check=True)

    # another source makes another program
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in SOURCES)).hexdigest()[:12]
    return fetch_once(f"fake-gcs-server-{VERSION}-{digest}", "go", "fake-gcs", install)


@contextmanager
def serve_gcs(program: str, folder: Path) -> Iterator[GcsServer]:
    """Run the server until the block ends. It keeps objects in memory."""
    port = find_free_port()
    command = [program, "--address", f"127.0.0.1:{port}", "--bucket", BUCKET]
    with run_server(command, port, folder):
        yield GcsServer(f"http://127.0.0.1:{port}")


if __name__ == "__main__":
    print(build())
