"""Tests of this folder share a busy namespace and a browser."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser.webdriver import Tab, open_tab
from unit.busy_namespace import BusyNamespace, open_busy_namespace


@pytest.fixture(scope="session")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BusyNamespace]:
    # a relative path, so that the pictures show none of this machine
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("pictures"))
    try:
        with open_busy_namespace(Path("data")) as namespace:
            yield namespace
    finally:
        os.chdir(before)


@pytest.fixture(scope="session")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with open_tab(tmp_path_factory.mktemp("profile")) as opened:
        yield opened
