import os

import pytest

from gangline.agent.diskroom import DiskRoom, decide_low

GB = 1_000_000_000


@pytest.mark.parametrize(
    ("total", "low"), [(100 * GB, 5 * GB), (10_000 * GB, 10 * GB), (60_000_000, 3_000_000), (0, 0)]
)
def test_a_twentieth_at_most_10_gb(total, low):
    assert decide_low(total) == low


def test_it_is_said_once_until_there_was_room_again(tmp_path, monkeypatch):
    free = iter([90, 4, 3, 6, 4, 50, 4])
    real = os.statvfs(tmp_path)
    values = list(real)

    def statvfs(_path):
        values[0], values[1], values[2], values[4] = GB, GB, 100, next(free)
        return os.statvfs_result(values)

    monkeypatch.setattr(os, "statvfs", statvfs)
    told: list[str] = []
    room = DiskRoom(tmp_path, told.append)
    for _ in range(7):
        room.look()
    assert len(told) == 2
    assert told[0].startswith("The disk is nearly full: 4.0 GB of 100.0 GB are left under")
    assert str(tmp_path) in told[0]


def test_a_folder_that_is_gone_is_no_news(tmp_path):
    DiskRoom(tmp_path / "gone", lambda _text: pytest.fail("nothing to say")).look()
