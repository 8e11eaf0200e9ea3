"""What may be wrong with this machine or with a namespace (namespace.py), and how to mend it.

Each check ends in one `Finding`, whatever it comes upon.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING

from lakemq.jobs.output import one_line

if TYPE_CHECKING:
    from lakemq.engine.namespace.config import EngineConfig
    from lakemq.errors import LakeMQError


@dataclass(frozen=True)
class Finding:
    """The outcome of a check; `mend` is empty when it is ok."""

    check: str
    ok: bool
    found: str
    mend: str = ""


def examine(
    path: str | None,
    conf: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    spark: bool = True,
) -> Iterator[Finding]:
    """All findings, the machine's first. Without a path only those."""
    yield _checked("versions", lambda: check_versions(spark))
    if spark:
        yield _checked("java", check_java)
        yield _checked("jars", check_jars)
    yield _checked("settings", lambda: check_settings(conf))
    if path is None:
        return
    from lakemq.engine.client.connection import Connection
    from lakemq.engine.namespace.namespace import open_namespace
    from lakemq.errors import LakeMQError
    from lakemq.jobs.doctor.namespace import CHECKS

    try:
        mq = Connection(open_namespace(path, _config(conf), storage_options))
    except LakeMQError as error:
        yield _refused("namespace", error, "Is the path right? What helps")
        return
    with mq:
        for name, check in CHECKS.items():
            yield _checked(name, partial(check, mq))


def _config(conf: str | None) -> EngineConfig:
    """The settings, or where they cannot be read, which another check tells, the defaults."""
    from lakemq.engine.namespace.config import EngineConfig, load_config
    from lakemq.errors import LakeMQError

    try:
        return load_config(conf)
    except LakeMQError:
        return EngineConfig()


def _checked(name: str, check: Callable[[], Finding]) -> Finding:
    """What the check finds; that it cannot be made is a finding too."""
    from lakemq.errors import TableDamaged

    try:
        return check()
    except TableDamaged as error:
        return Finding(
            name, False, one_line(f"{error.name}: {error.detail}"), one_line(f"What helps: {error.expected}")
        )
    except Exception as error:  # a doctor that dies of the illness helps nobody
        text = one_line(f"{type(error).__name__}: {error}")[:300]
        return Finding(name, False, text, "The check could not be made: mend what it says, then run doctor again.")


def _refused(check: str, error: LakeMQError, ask: str) -> Finding:
    return Finding(check, False, one_line(f"{error.name}: {error.detail}"), one_line(f"{ask}: {error.expected}."))


# -- the machine ----------------------------------------------------------------------------------------


_OPTIONAL = ("duckdb",)


def check_versions(spark: bool = True) -> Finding:
    """The packages installed are in the ranges that this version was made for."""
    from lakemq.jobs.jars import DELTA_VERSION

    only_spark = ("pyspark", "delta-spark", "pandas")
    known = requirements()
    names = [n for n in ("deltalake", "pyarrow", *(only_spark if spark else ()), *_OPTIONAL) if n in known]
    versions, wrong = {"python": ".".join(map(str, sys.version_info[:3]))}, []
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            if name not in _OPTIONAL:
                wrong.append(f"{name}{known[name]}")
            continue
        if not within(versions[name], known[name]):
            wrong.append(f"{name}{known[name]}")
    if spark and versions.get("delta-spark", DELTA_VERSION) != DELTA_VERSION:
        wrong.append(f"delta-spark=={DELTA_VERSION}")
    found = ", ".join(f"{name} {version}" for name, version in versions.items())
    mend = f"pip install {' '.join(repr(w) for w in wrong)}" if wrong else ""
    return Finding("versions", not wrong, found, mend)


def requirements() -> dict[str, str]:
    """Package -> range, as LakeMQ's own metadata says; empty where there is none (a zip on the path)."""
    try:
        lines = metadata.requires("lakemq") or []
    except metadata.PackageNotFoundError:
        return {}
    plain = (line.split(";")[0].strip() for line in lines)
    cuts = ((line, min((line.find(c) for c in "<>=! " if c in line), default=len(line))) for line in plain)
    return {line[:at]: line[at:].strip() for line, at in cuts}


def within(version: str, range: str) -> bool:
    """Whether a version satisfies a range of `>=`, `<` and `==` (also with a final `.*`), joined by commas."""
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
    """Java is there and new enough for Spark."""
    from lakemq.jobs.jars import MissingJava, java_command

    try:
        return Finding("java", True, java_command())
    except MissingJava as error:
        mend = "Install a JDK or JRE of version 17 or newer; without Spark nothing needs it (--no-spark)."
        return Finding("java", False, one_line(str(error)), mend)


def check_jars() -> Finding:
    """Delta's jars are kept, so that no session asks a repository."""
    from lakemq.jobs.jars import MissingJars, kept_folder, kept_jars

    try:
        return Finding("jars", True, f"{len(kept_jars())} in {kept_folder()}")
    except MissingJars as error:
        return Finding("jars", False, one_line(str(error)), f"{sys.executable} -m lakemq.jobs.jars")


def check_settings(conf: str | None) -> Finding:
    """The settings file is valid."""
    from lakemq.engine.namespace.config import VARIABLE, load_config
    from lakemq.errors import InvalidConfig

    try:
        settings = load_config(conf)
    except InvalidConfig as error:
        return Finding("settings", False, one_line(str(error)), f"Mend the file (--conf, or ${VARIABLE}).")
    return Finding("settings", True, f"{len(settings)} settings, all valid")
