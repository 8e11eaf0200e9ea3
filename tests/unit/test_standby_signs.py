"""Signs of standbys: they appear while a sequencer stands by, and go when it leads, ends or is killed."""

import os
import time
from pathlib import Path

from lakemq.tables.storage.coordination.leader_locks import SIGN_EVERY_MS, StandbySigns
from lakemq.tables.storage.object_stores.files import LocalFiles


def make_older(folder: Path, name: str, seconds: float) -> None:
    """Let the signs of a sequencer be as old as if it had been silent since."""
    for sign in (folder / "standbys").glob(f"{name}-*"):
        os.utime(sign, (time.time() - seconds,) * 2)


def test_a_sign_is_seen_until_it_is_old(tmp_path: Path) -> None:
    files = LocalFiles(str(tmp_path))
    signs = StandbySigns(files)
    assert signs.list_present(files.time_ms()) == []
    signs.put("host-1-ab", 1)
    signs.put("host-2-cd", 1)
    signs.put("host-1-ab", 2)
    assert signs.list_present(files.time_ms()) == ["host-1-ab", "host-2-cd"]
    assert len(list((tmp_path / "standbys").iterdir())) == 2, "the sign before is deleted"
    make_older(tmp_path, "host-2-cd", 3 * SIGN_EVERY_MS / 1000 + 5)
    assert signs.list_present(files.time_ms()) == ["host-1-ab"]
    signs.forget("host-1-ab")
    assert signs.list_present(files.time_ms()) == []


def test_signs_of_killed_standbys_are_deleted_after_an_hour(tmp_path: Path) -> None:
    signs = StandbySigns(LocalFiles(str(tmp_path)))
    signs.put("killed-1-ab", 7)
    make_older(tmp_path, "killed-1-ab", 4_000)
    signs.put("alive-2-cd", 1)
    assert [sign.name for sign in (tmp_path / "standbys").iterdir()] == ["alive-2-cd-0000000001"]
