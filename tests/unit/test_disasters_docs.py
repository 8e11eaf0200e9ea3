"""The commands of the guides to clusters and disasters run as they stand, and do what the pages say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import yaml

import lakemq
from lakemq.engine.namespace.config import ENGINE

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str, language: str = "sh") -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def run(script: str, folder: Path, code: int = 0) -> str:
    """Return what a block prints, with a namespace at data/mq."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "LAKEMQ_PATH": str(folder / "data/mq"), "COLUMNS": "400", "PATH": path}
    done = subprocess.run(
        ["bash", "-c", f"set -uo pipefail\n{script}"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == code, (script, done.stdout, done.stderr)
    return done.stdout


def test_the_commands_of_disasters(tmp_path: Path) -> None:
    with lakemq.connect(str(tmp_path / "data/mq"), create=True) as mq, mq.serving():
        mq.topics.create("orders")
        mq.publish("orders", pa.table({"key": ["a", "b", "c"], "value": ["1", "2", "3"]}))
    copy, lose, put_back, restore, copy_over, check_clocks = blocks("disasters.md")
    assert re.search(r"^orders +1 +3 ", run(copy, tmp_path), re.MULTILINE)
    lost = run(lose, tmp_path, code=1)
    assert re.search(r"^data files +FINDING +1 of 1 are missing or damaged: \S+\.parquet \(gone\)", lost, re.MULTILINE)
    assert "topics delete-records orders --before 0=3" in lost
    found = run(put_back, tmp_path)
    assert "FINDING" not in found
    assert re.search(r"^ *0 +0 .*\ba +1$", found, re.MULTILINE), found
    run("lakemq topics create later", tmp_path)
    assert "FINDING" not in run(restore, tmp_path)
    assert "later" not in run("lakemq topics list", tmp_path)
    assert "later" in run("lakemq --path damaged topics list", tmp_path)
    run(copy_over, tmp_path)
    with lakemq.connect(str(tmp_path / "data/mq")) as mq:
        assert [message.value for message in mq.fetch("orders")] == [b"1", b"2", b"3", b"1", b"2"]
        assert [message.key for message in mq.fetch("orders")] == [b"a", b"b", b"c", b"a", b"b"]
    assert re.search(r"^clock +ok +within", run(check_clocks, tmp_path), re.MULTILINE)


def test_the_commands_of_clusters(tmp_path: Path) -> None:
    run("lakemq init", tmp_path)
    (script,) = blocks("clusters.md")
    run(script, tmp_path)
    assert re.search(r"^orders +1 ", run("lakemq topics list", tmp_path), re.MULTILINE)
    assert "has ended without handing over its lease" in (tmp_path / "second.log").read_text()
    assert not list((tmp_path / "data/mq/standbys").iterdir()), "a leader is no standby any more"


def test_the_manifest_of_clusters_parses_and_its_settings_exist() -> None:
    (manifest,) = blocks("clusters.md", "yaml")
    deployment, settings = yaml.safe_load_all(manifest)
    template = deployment["spec"]["template"]
    labels = template["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert template["spec"]["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"] == labels
    (container,) = template["spec"]["containers"]
    assert container["command"][:2] == ["lakemq", "serve"]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in template["spec"]["volumes"]}
    assert template["spec"]["volumes"][0]["configMap"]["name"] == settings["metadata"]["name"]
    assert {*yaml.safe_load(settings["data"]["lakemq.yaml"])} <= {*ENGINE.declared}
