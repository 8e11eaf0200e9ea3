"""Fixtures of the tests that kill processes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.processes import QUICK, Processes, make_template, processes


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A namespace with the empty topic `t` of two partitions."""
    return make_template(tmp_path_factory.mktemp("template"))


@pytest.fixture
def family(tmp_path: Path, template: Path) -> Iterator[Processes]:
    """Processes on a namespace of their own, with quick settings."""
    with processes(tmp_path, template, QUICK) as children:
        yield children
    shutil.rmtree(tmp_path, ignore_errors=True)
