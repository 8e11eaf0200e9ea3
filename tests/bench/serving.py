"""A sequencer in a process of its own, as `lakemq serve` runs it."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

_SERVE = """
import json, sys
import lakemq
from lakemq.jobs.process.native_memory import choose_allocator
from lakemq.jobs.serve import serve_until_signal
choose_allocator()
options = json.loads(sys.stdin.readline())
with lakemq.connect(sys.argv[1], storage_options=options, create=True, config=json.loads(sys.argv[2])) as mq:
    print("ready", flush=True)
    serve_until_signal(mq)
"""


@contextmanager
def run_sequencer(
    path: str, config: Mapping[str, int | str] | None = None, storage_options: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Serve the namespace at `path`, which is made if need be, while the block runs. Yield the sequencer's process."""
    command = [sys.executable, "-c", _SERVE, path, json.dumps(dict(config or {}))]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(dict(storage_options or {})) + "\n")
    process.stdin.close()
    try:
        if process.stdout.readline() != "ready\n":
            raise RuntimeError("the sequencer did not start")
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        process.stdout.close()
