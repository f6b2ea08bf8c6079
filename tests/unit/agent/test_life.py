import os
from pathlib import Path

from gangline.agent.life import LifeSign


def test_the_sign_is_made_touched_and_gives_its_room_back(tmp_path: Path) -> None:
    path = tmp_path / "launches" / "000" / "leader.alive"
    life = LifeSign(path)
    life.begin()
    assert path.stat().st_size >= 1 << 16
    os.utime(path, (1, 1))
    life.beat()
    assert path.stat().st_mtime > 1
    life.give_room()
    assert path.stat().st_size == 0


def test_a_sign_that_was_removed_is_not_made_again(tmp_path: Path) -> None:
    life = LifeSign(tmp_path / "leader.alive")
    life.beat()
    life.give_room()
    assert not list(tmp_path.iterdir())
