"""Jars are kept completely or not at all. Errors name missing jars and the command that fetches them. No JVM runs."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark import SparkContext

from lakemq.jobs import jars
from lakemq.spark import spark_session

JAR = jars.Jar("org.example", "small", "1.0", hashlib.sha256(b"right").hexdigest())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the jars, which does not exist yet. There is one jar to keep, and Spark must not be started."""
    folder = tmp_path / "jars"
    monkeypatch.setenv("LAKEMQ_JARS", str(folder))
    monkeypatch.setattr(jars, "DELTA_JARS", replace(jars.DELTA_JARS, jars=(JAR,)))
    spark_brings(monkeypatch, None)
    return folder


def spark_brings(monkeypatch: pytest.MonkeyPatch, content: bytes | None) -> None:
    def run(work: Path, wanted: Sequence[jars.Jar]) -> None:
        assert list(wanted) == [JAR]
        assert content is not None, "Spark was asked"
        (work / "jars").mkdir()
        (work / "jars" / f"{JAR.organisation}_{JAR.file_name}").write_bytes(content)

    monkeypatch.setattr(jars, "_run_resolver", run)


def fake_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))


def test_jars_are_kept_in_the_named_folder_or_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEMQ_JARS", "/kept")
    assert jars.kept_folder() == Path("/kept")
    monkeypatch.delenv("LAKEMQ_JARS")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert jars.kept_folder() == Path(f"/cache/lakemq/jars-{jars.DELTA_VERSION}")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert jars.kept_folder() == Path(f"/home/somebody/.cache/lakemq/jars-{jars.DELTA_VERSION}")


def test_fetched_jars_are_kept_and_not_fetched_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark_brings(monkeypatch, b"right")
    assert jars.DELTA_JARS.resolve() == (folder / JAR.file_name,)
    spark_brings(monkeypatch, None)
    assert jars.DELTA_JARS.resolve() == jars.kept_jars() == (folder / JAR.file_name,)
    assert [path.name for path in folder.iterdir()] == [JAR.file_name]


def test_jar_with_a_wrong_hash_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark_brings(monkeypatch, b"wrong")
    with pytest.raises(jars.JarsNotResolved, match="does not hash"):
        jars.DELTA_JARS.resolve()
    assert list(folder.iterdir()) == []


def fake_spark_submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Make SPARK_HOME a folder whose spark-submit is this script. $2 is the properties file."""
    submit = tmp_path / "spark" / "bin" / "spark-submit"
    submit.parent.mkdir(parents=True)
    submit.write_text(f"#!/bin/sh\n{script}\n")
    submit.chmod(0o755)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    fake_java(tmp_path, monkeypatch, "17")


def test_resolver_asks_spark_for_the_jars_without_dependencies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_spark_submit(tmp_path, monkeypatch, f'cp "$2" {tmp_path}/seen')
    jars._run_resolver(tmp_path, jars.DELTA_JARS.jars)
    settings = dict(line.split(" ", 1) for line in (tmp_path / "seen").read_text().splitlines())
    assert settings["spark.jars.packages"] == ",".join(jar.coordinates for jar in jars.DELTA_JARS.jars)
    assert 'usepoms="false"' in Path(settings["spark.jars.ivySettings"]).read_text()


def test_error_of_the_resolver_holds_sparks_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_spark_submit(tmp_path, monkeypatch, "echo UnknownHostException >&2; exit 1")
    with pytest.raises(jars.JarsNotResolved, match=r"network\?\nUnknownHostException$"):
        jars._run_resolver(tmp_path, jars.DELTA_JARS.jars)


def test_jars_in_a_folder_that_was_filled_by_hand_are_accepted(folder: Path) -> None:
    folder.mkdir()
    (folder / JAR.file_name).write_bytes(b"wrong")
    with pytest.raises(jars.MissingJars):
        jars.kept_jars()
    (folder / JAR.file_name).write_bytes(b"right")
    assert jars.DELTA_JARS.resolve() == jars.kept_jars()


def test_truncated_jar_is_fetched_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark_brings(monkeypatch, b"right")
    (cut,) = jars.DELTA_JARS.resolve()
    cut.write_bytes(b"rig")
    with pytest.raises(jars.MissingJars, match="not whole"):
        jars.kept_jars()
    assert jars.DELTA_JARS.resolve() == (cut,)
    assert cut.read_bytes() == b"right"


def test_the_command_prints_the_jars_or_what_to_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert jars.main(["--print"]) == 1
    assert f"{sys.executable} -m lakemq.jobs.jars" in capsys.readouterr().err
    spark_brings(monkeypatch, b"right")
    assert jars.main([]) == 0
    capsys.readouterr()
    assert jars.main(["--print"]) == 0
    assert capsys.readouterr().out == f"{folder / JAR.file_name}\n"


def test_older_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("1.8.0_292", "11.0.2"):
        fake_java(tmp_path / version, monkeypatch, version)
        with pytest.raises(jars.MissingJava, match=version):
            jars.java_command()


def test_a_java_home_without_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(jars.MissingJava, match="JAVA_HOME"):
        jars.java_command()


def test_a_session_without_jars_says_what_to_run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    fake_java(tmp_path, monkeypatch, "17")
    with pytest.raises(jars.MissingJars, match=r"Run: .* -m lakemq.jobs.jars"):
        spark_session(master="local[1]")
