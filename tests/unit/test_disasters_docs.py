"""The commands of the guides to clusters and disasters run as they stand, and do what the pages say."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from unit.pages import read_blocks, run_commands

import lakemq

pytestmark = pytest.mark.slow


def test_commands_of_disasters_bring_back_what_was_lost(tmp_path: Path) -> None:
    with lakemq.connect(str(tmp_path / "data/mq"), create=True) as mq, mq.serving():
        mq.topics.create("orders")
        mq.publish("orders", pa.table({"key": ["a", "b", "c"], "value": ["1", "2", "3"]}))

    def run(script: str, last_code: int = 0) -> str:
        return "".join(run_commands(script, tmp_path, last_code, {"LAKEMQ_PATH": str(tmp_path / "data/mq")}))

    copy, check, lose, put_back, restore, copy_over, check_clocks = read_blocks("disasters.md", "sh")
    assert re.search(r"^orders +1 +3 ", run(copy), re.MULTILINE)
    run(check)
    loss = run(lose, last_code=1)
    assert re.search(r"^data files +FINDING +1 of 1 are missing or damaged: \S+\.parquet \(gone\)", loss, re.MULTILINE)
    assert "topics delete-records orders --before 0=3" in loss
    repaired = run(put_back)
    assert "FINDING" not in repaired
    assert re.search(r"^ *0 +0 .*\ba +1$", repaired, re.MULTILINE), repaired
    run("lakemq topics create later")
    assert "FINDING" not in run(restore)
    assert "later" not in run("lakemq topics list")
    assert "later" in run("lakemq --path damaged topics list")
    run(copy_over)
    with lakemq.connect(str(tmp_path / "data/mq")) as mq:
        assert [(message.key, message.value) for message in mq.fetch("orders")] == [
            (b"a", b"1"), (b"b", b"2"), (b"c", b"3"), (b"a", b"1"), (b"b", b"2"),
        ]  # fmt: skip
    assert re.search(r"^clock +ok +within", run(check_clocks), re.MULTILINE)


@pytest.mark.extended
def test_commands_of_clusters_show_a_take_over(tmp_path: Path) -> None:
    lakemq.connect(str(tmp_path / "data/mq"), create=True).close()
    (script,) = read_blocks("clusters.md", "sh")
    environment = {
        "LAKEMQ_PATH": str(tmp_path / "data/mq"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    command = ["bash", "-c", f"set -uo pipefail\n{script}\nlakemq topics list"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert re.search(r"^orders +1 ", done.stdout, re.MULTILINE)
    assert "has ended without handing over its lease" in (tmp_path / "second.log").read_text()
    assert not list((tmp_path / "data/mq/standbys").iterdir()), "a leader is no standby any more"
