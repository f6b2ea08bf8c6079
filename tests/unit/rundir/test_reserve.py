from __future__ import annotations

import os
from types import SimpleNamespace

from gangline.rundir.reserve import RESERVE_BYTES, release_reserve, renew_reserve


def test_the_room_is_really_taken_and_given_back_once(tmp_path):
    renew_reserve(tmp_path)
    found = (tmp_path / "reserve").stat()
    assert (found.st_size, found.st_blocks * 512 >= RESERVE_BYTES) == (RESERVE_BYTES, True)
    assert [release_reserve(tmp_path), release_reserve(tmp_path)] == [True, False]


def test_a_disk_with_little_room_is_not_filled_further(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "statvfs", lambda _path: SimpleNamespace(f_bavail=4 * RESERVE_BYTES - 1, f_frsize=1))
    renew_reserve(tmp_path)
    assert not (tmp_path / "reserve").exists()


def test_a_folder_that_is_gone_is_no_trouble(tmp_path):
    renew_reserve(tmp_path / "gone")
    assert not release_reserve(tmp_path / "gone")
