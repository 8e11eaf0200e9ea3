"""Prometheus' own server and `promtool`, built by Go once and kept in the user's cache folder.

python tests/promtool.py    build them if they are missing, and print where promtool is
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

from fetched_programs import fetch_once

VERSION = "0.316.0"
MODULE = f"github.com/prometheus/prometheus@v{VERSION}"
VARIABLE = "LAKEMQ_TEST_PROMTOOL"
"""Environment variable with the path of promtool. The server, `prometheus`, is beside it."""


def build() -> Path:
    """Return promtool. Go checks the sources against its public checksums.

    `go install` refuses a module whose go.mod excludes versions, so it is built in a copy of the module.
    """

    def install(folder: Path) -> None:
        described = subprocess.run(["go", "mod", "download", "-json", MODULE], cwd=folder, check=True, stdout=-1)
        sources = folder / "sources"
        shutil.copytree(json.loads(described.stdout)["Dir"], sources, copy_function=shutil.copyfile)
        for path in [sources, *sources.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        # Without the clients of clouds, which find targets to scrape, it builds in half the time. Without the tag
        # `builtinassets` the server has its HTTP API and no pages, for which it would need npm.
        command = ["go", "build", "-tags=remove_all_sd", "-ldflags=-s -w", "-o", str(folder)]
        environment = {**os.environ, "GOFLAGS": "-mod=readonly", "GOWORK": "off"}
        subprocess.run([*command, "./cmd/promtool", "./cmd/prometheus"], env=environment, cwd=sources, check=True)
        shutil.rmtree(sources)

    return fetch_once(f"prometheus-{VERSION}", "go", "promtool", install)


if __name__ == "__main__":
    print(build())
