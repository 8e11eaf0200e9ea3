"""Tests of this folder share a busy namespace that they only read."""

from collections.abc import Iterator

import pytest
from unit.busy_namespace import BusyNamespace, open_busy_namespace


@pytest.fixture(scope="session")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BusyNamespace]:
    with open_busy_namespace(tmp_path_factory.mktemp("busy")) as namespace:
        yield namespace
