import os
from pathlib import Path

import pytest

from gangline.agent.life import LifeSign


def test_the_sign_is_made_and_touched_and_becomes_a_result_in_its_own_room(tmp_path: Path) -> None:
    path = tmp_path / "launches" / "000" / "leader.alive"
    life = LifeSign(path)
    life.begin()
    assert path.stat().st_size >= 1 << 16
    os.utime(path, (1, 1))
    life.beat()
    assert path.stat().st_mtime > 1
    result, inode = tmp_path / "result.json", path.stat().st_ino
    assert life.become(result, b"{}\n")
    assert (result.read_bytes(), result.stat().st_ino) == (b"{}\n", inode)
    assert not path.exists()
    life.beat()
    assert not path.exists(), "nobody waits for a sign that has gone"


def test_where_the_room_does_not_do_it_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    life = LifeSign(tmp_path / "leader.alive")
    life.begin()
    monkeypatch.setattr(os, "pwrite", lambda _descriptor, data, _at: len(data) - 1)
    assert not life.become(tmp_path / "result.json", b"{}\n")
    assert (tmp_path / "leader.alive").stat().st_size == 0
    assert not (tmp_path / "result.json").exists()


def test_a_sign_that_was_removed_is_not_made_again(tmp_path: Path) -> None:
    life = LifeSign(tmp_path / "leader.alive")
    life.beat()
    assert not life.become(tmp_path / "result.json", b"{}\n")
    assert not list(tmp_path.iterdir())
