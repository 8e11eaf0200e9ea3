"""Check this machine for problems, and say how to fix them; namespace.py checks a namespace.

Each check returns one `Finding`, even if it fails itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from typing import TYPE_CHECKING

from lakemq.jobs.doctor.namespace import Finding
from lakemq.jobs.output import one_line

if TYPE_CHECKING:
    from lakemq.engine.namespace.config import EngineConfig


def examine(
    path: str | None,
    conf: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    spark: bool = True,
) -> Iterator[Finding]:
    """Yield all findings: first the machine's, then, with a path, the namespace's."""
    yield run_check("versions", lambda: check_versions(spark))
    if spark:
        yield run_check("java", check_java)
        yield run_check("jars", check_jars)
    yield run_check("settings", lambda: check_settings(conf))
    if path is None:
        return
    from lakemq.engine.client.connection import Connection
    from lakemq.engine.namespace.namespace import open_namespace
    from lakemq.errors import LakeMQError
    from lakemq.jobs.doctor.namespace import make_checks

    try:
        mq = Connection(open_namespace(path, _config(conf), storage_options))
    except LakeMQError as error:
        advice = one_line(f"Is the path right? It should be: {error.expected}.")
        yield Finding("namespace", False, one_line(f"{error.name}: {error.detail}"), advice)
        return
    with mq:
        for name, check in make_checks(mq, mq.observer()).items():
            yield run_check(name, check)


def _config(conf: str | None) -> EngineConfig:
    """Return the settings; the defaults if they cannot be read, which `check_settings` reports."""
    from lakemq.engine.namespace.config import EngineConfig, load_config
    from lakemq.errors import LakeMQError

    try:
        return load_config(conf)
    except LakeMQError:
        return EngineConfig()


def run_check(name: str, check: Callable[[], Finding]) -> Finding:
    """Run a check. If it raises, that is a finding, too."""
    from lakemq.errors import TableDamaged

    try:
        return check()
    except TableDamaged as error:
        return Finding(
            name, False, one_line(f"{error.name}: {error.detail}"), one_line(f"What helps: {error.expected}")
        )
    except Exception as error:  # a doctor must not die of the disease
        text = one_line(f"{type(error).__name__}: {error}")[:300]
        return Finding(name, False, text, "The check itself failed. Fix this error, then run the doctor again.")


# -- the machine ----------------------------------------------------------------------------------------


_OPTIONAL = ("duckdb",)


def check_versions(spark: bool = True) -> Finding:
    """Check that installed packages are in the ranges that this version supports."""
    from lakemq.jobs.jars import DELTA_VERSION

    only_spark = ("pyspark", "delta-spark", "pandas")
    ranges = requirements()
    names = [n for n in ("deltalake", "pyarrow", *(only_spark if spark else ()), *_OPTIONAL) if n in ranges]
    versions, wrong = {"python": ".".join(map(str, sys.version_info[:3]))}, []
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            if name not in _OPTIONAL:
                wrong.append(f"{name}{ranges[name]}")
            continue
        if not within(versions[name], ranges[name]):
            wrong.append(f"{name}{ranges[name]}")
    if spark and versions.get("delta-spark", DELTA_VERSION) != DELTA_VERSION:
        wrong.append(f"delta-spark=={DELTA_VERSION}")
    versions_text = ", ".join(f"{name} {version}" for name, version in versions.items())
    advice = f"pip install {' '.join(repr(w) for w in wrong)}" if wrong else ""
    return Finding("versions", not wrong, versions_text, advice)


def requirements() -> dict[str, str]:
    """Return the version range per package from LakeMQ's metadata; empty for a zip on the path, which has none."""
    try:
        lines = metadata.requires("lakemq") or []
    except metadata.PackageNotFoundError:
        return {}
    plain = (line.split(";")[0].strip() for line in lines)
    cuts = ((line, min((line.find(c) for c in "<>=! " if c in line), default=len(line))) for line in plain)
    return {line[:at]: line[at:].strip() for line, at in cuts}


def within(version: str, range: str) -> bool:
    """Return whether a version satisfies a range of `>=`, `<` and `==` (also with a final `.*`), joined by commas."""
    at = _numbers(version)
    for part in filter(None, (p.strip() for p in range.split(","))):
        bound = part.lstrip("<>=")
        limit = _numbers(bound.removesuffix(".*"))
        if part.startswith(">=") and not at >= limit:
            return False
        if part.startswith("==") and at[: len(limit)] != limit:
            return False
        if part.startswith("<") and not part.startswith("<=") and not at < limit:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    leading = ("".join(c for c in part if c.isdigit()) for part in version.split("+")[0].split("."))
    return tuple(int(part) for part in leading if part)


def check_java() -> Finding:
    """Check that Java is installed and new enough for Spark."""
    from lakemq.jobs.jars import MissingJava, java_command

    try:
        return Finding("java", True, java_command())
    except MissingJava as error:
        advice = "Install a JDK or JRE of version 17 or newer. Only Spark needs it: --no-spark skips this check."
        return Finding("java", False, one_line(str(error)), advice)


def check_jars() -> Finding:
    """Check that Delta's jars are on this machine, so that no session needs a repository."""
    from lakemq.jobs.jars import MissingJars, kept_folder, kept_jars

    try:
        return Finding("jars", True, f"{len(kept_jars())} in {kept_folder()}")
    except MissingJars as error:
        return Finding("jars", False, one_line(str(error)), f"{sys.executable} -m lakemq.jobs.jars")


def check_settings(conf: str | None) -> Finding:
    """Check that the settings file is valid."""
    from lakemq.engine.namespace.config import VARIABLE, load_config
    from lakemq.errors import InvalidConfig

    try:
        settings = load_config(conf)
    except InvalidConfig as error:
        return Finding("settings", False, one_line(str(error)), f"Correct the settings file (--conf, or ${VARIABLE}).")
    return Finding("settings", True, f"{len(settings)} settings, all valid")
