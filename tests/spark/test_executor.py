"""Code that travels to executors needs pyarrow, numpy and xxhash, and no other dependency of LakeMQ."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# the packages of setup.cfg that an executor need not have
MISSING = ("msgspec", "deltalake", "typer", "rich", "yaml", "duckdb", "jinja2", "pandas", "delta")

BLOCK = f"""
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {MISSING!r}:
            raise ModuleNotFoundError(f"not on executors: {{name}}")

sys.meta_path.insert(0, Block())
"""

WRITE = """
import pyarrow as pa
from lakemq.engine.client.rows.placing import Copy
from lakemq.engine.client.publish.executor import Destination, WriteMessages

def batches():
    for i in range(3):
        yield pa.RecordBatch.from_pydict(
            {
                "key": pa.array([b"a", None], pa.binary()),
                "value": pa.array([b"v", b"w"], pa.binary()),
                "timestamp": pa.array([0, 1], pa.timestamp("us", "UTC")),
            }
        )

write = WriteMessages(ROOT, {}, (Destination("t", (Copy(4, "xxhash64", 1000, (0,)), Copy(3, "murmur2", 1000, (1,)))),))
(ranges,) = write(batches())
print(sum(ranges.column("record_count").to_pylist()))
"""


@pytest.mark.extended
def test_executor_runs_a_zip_with_only_arrow_and_numpy(tmp_path: Path, wheel: Path) -> None:
    (tmp_path / "messages").mkdir()
    archive = tmp_path / "lakemq.zip"
    archive.write_bytes(wheel.read_bytes())
    code = f"{BLOCK}\nROOT = {str(tmp_path)!r}\n{WRITE}"
    code += "\nimport lakemq\nassert '.zip/' in lakemq.__file__, lakemq.__file__"
    command, environment = [sys.executable, "-c", code], {**os.environ, "PYTHONPATH": str(archive)}
    # Not in the checkout, where Python would find `lakemq` before it looks into the zip.
    completed = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120, env=environment
    )
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.strip() == "12"
    assert len(list((tmp_path / "messages").iterdir())) == 1
