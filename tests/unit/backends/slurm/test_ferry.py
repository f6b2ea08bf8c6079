from __future__ import annotations

import errno
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from gangline.backends.slurm import ferry as module
from gangline.backends.slurm.ferry import Ferry, Pace
from gangline.domain.errors import Transient
from gangline.rundir import mirror
from gangline.rundir.home import Home
from gangline.testing.link import LocalLink

LOG = "attempts/0/rank-00000.log"
RESULT = "attempts/0/result.json"


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now + 5000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


class CountingLink(LocalLink):
    reads = 0
    changes_asked = 0

    def read(self, reads: Sequence[tuple[str, str, int, int]]) -> list[bytes | None]:
        self.reads += 1
        return super().read(reads)

    def changes(self, runs: Sequence[str], since: object):
        self.changes_asked += 1
        return super().changes(runs, since)


@pytest.fixture
def link(tmp_path: Path) -> CountingLink:
    return CountingLink(tmp_path / "work")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def ferry(link: CountingLink, home: Home) -> Ferry:
    return Ferry(link, home, name="a")


def put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(data)


def far(link: LocalLink, path: str, data: bytes = b"x", run: str = "r") -> Path:
    put(link.work / "runs" / run / path, data)
    return link.work / "runs" / run / path


def test_what_grows_there_grows_here(ferry: Ferry, link: CountingLink, home: Home) -> None:
    far(link, LOG, b"one\n")
    ferry.follow("r")
    ferry._round()
    far(link, LOG, b"two\n")
    far(link, RESULT, b"{}")
    ferry._round()
    mirror_dir = home.run("r").path
    assert (mirror_dir / LOG).read_bytes() == b"one\ntwo\n"
    assert (mirror_dir / RESULT).read_bytes() == b"{}"
    reads = link.reads
    ferry._round()
    assert link.reads == reads


def test_the_end_mark_of_a_batch_script_comes_over(ferry: Ferry, link: CountingLink, home: Home) -> None:
    far(link, "launches/001/job.exit", b"7 0 1700000000\n")
    ferry.follow("r")
    ferry._round()
    assert home.run("r").launch(1).exit_mark.read_bytes() == b"7 0 1700000000\n"


def test_many_runs_cost_one_question_and_few_reads(ferry: Ferry, link: CountingLink, home: Home) -> None:
    for number in range(100):
        far(link, LOG, b"x", run=f"r{number}")
        ferry.follow(f"r{number}")
    ferry._round()
    assert (link.changes_asked, link.reads) == (1, 1)
    far(link, LOG, b"y", run="r7")
    ferry._round()
    assert (link.changes_asked, link.reads) == (2, 2)
    assert (home.run("r7").path / LOG).read_bytes() == b"xy"


def test_only_followed_runs_are_mirrored(ferry: Ferry, link: CountingLink, home: Home) -> None:
    far(link, LOG)
    far(link, LOG, run="other")
    ferry.follow("r")
    ferry._round()
    ferry.forget("r")
    far(link, LOG)
    ferry._round()
    assert (home.run("r").path / LOG).read_bytes() == b"x"
    assert not home.run("other").path.exists()


def test_a_new_ferry_goes_on_where_the_old_one_was(ferry: Ferry, link: CountingLink, home: Home) -> None:
    far(link, LOG, b"one\n")
    ferry.follow("r")
    ferry._round()
    far(link, LOG, b"two\n")
    again = Ferry(link, home, name="a")
    again.follow("r")
    again._round()
    assert (home.run("r").path / LOG).read_bytes() == b"one\ntwo\n"


def test_requests_are_pushed_whole_line_by_line_and_once(ferry: Ferry, link: CountingLink, home: Home) -> None:
    control, there = home.run("r").control, link.work / "runs/r/control.jsonl"
    put(control, b'{"seq": 0}\n{"se')
    ferry.follow("r")
    ferry._push_all()
    assert there.read_bytes() == b'{"seq": 0}\n'
    put(control, b'q": 1}\n')
    again = Ferry(link, home, name="a")
    again.follow("r")
    for one in (ferry, again, ferry):
        one._push_all()
    assert there.read_bytes() == b'{"seq": 0}\n{"seq": 1}\n'
    there.unlink()  # the folder was emptied there
    put(control, b'{"seq": 2}\n')
    ferry._push_all()
    ferry._push_all()
    assert there.read_bytes() == control.read_bytes()


def test_requests_that_cannot_be_sent_are_said_and_sent_later(ferry: Ferry, link: CountingLink, home: Home) -> None:
    put(home.run("r").control, b'{"seq": 0}\n')
    ferry.follow("r")
    link.error = Transient("The disk is full")
    with pytest.raises(Transient):
        ferry._push_all()
    link.error = None
    far(link, LOG)
    ferry._round()
    assert "requests cannot be sent: The disk is full" in ferry.problem("r")
    ferry._push_all()
    ferry._round()
    assert ferry.problem("r") == ""
    assert (link.work / "runs/r/control.jsonl").read_bytes() == b'{"seq": 0}\n'


def test_requests_that_are_only_there_are_not_written_over(ferry: Ferry, link: CountingLink, home: Home) -> None:
    far(link, "control.jsonl", b'{"seq": 0}\n{"seq": 1}\n')
    put(home.run("r").control, b'{"seq": 0}\n')
    ferry.follow("r")
    ferry._push_all()
    ferry._round()
    assert "has 22 bytes there and 11 here" in ferry.problem("r")


def test_the_sign_of_life_of_the_newest_launch_is_shown(ferry: Ferry, link: CountingLink, home: Home) -> None:
    alive = far(link, "launches/001/leader.alive")
    os.utime(alive, ns=(5_000, 5_000))
    ferry.follow("r")
    ferry._round()
    shown = home.run("r").launch(1).alive
    assert shown.stat().st_mtime_ns == 5_000
    os.utime(alive, ns=(9_000, 9_000))
    ferry._round()
    assert shown.stat().st_mtime_ns == 9_000


def test_the_end_is_said_after_a_whole_look_that_began_later(ferry: Ferry, link: CountingLink, home: Home) -> None:
    old = far(link, "attempts/0/rank-00001.log", b"old")
    far(link, "attempts/1/result.json", b"{}")
    far(link, "attempts/1/rank-00000.log", b"new")
    ferry.follow("r")
    ferry._round()
    put(old, b"er")  # of an older attempt, which is looked at now and then
    assert not ferry.finish("r")
    assert not ferry.finish("r")
    ferry._round()
    assert ferry.finish("r")
    assert (home.run("r").path / "attempts/0/rank-00001.log").read_bytes() == b"older"
    assert not ferry.finish("r", launch=1)


def test_the_end_is_not_said_while_the_connection_is_lost(ferry: Ferry, link: CountingLink) -> None:
    far(link, RESULT)
    assert not ferry.finish("r")
    link.error = Transient("lost")
    for _ in range(3):
        with pytest.raises(Transient):
            ferry._round()
        assert not ferry.finish("r")
    link.error = None
    ferry._round()
    assert ferry.finish("r")


def test_how_fresh_a_mirror_is(ferry: Ferry, link: CountingLink, clock: Clock) -> None:
    ferry.follow("r")
    ferry._round()
    assert ferry.mirrored("r") is None  # there is nothing yet
    far(link, LOG)
    ferry._round()
    assert ferry.mirrored("r") == 6000.0
    clock.now = 1010.0
    ferry._round()
    assert ferry.mirrored("r") == 6010.0
    link.error = Transient("lost")
    clock.now = 1020.0
    with pytest.raises(Transient):
        ferry._round()
    assert ferry.mirrored("r") == 6010.0
    assert ferry.mirrored("unknown") is None


def test_a_mirror_that_takes_no_more_is_not_fresh(
    ferry: Ferry, link: CountingLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    far(link, LOG)
    ferry.follow("r")

    def full(*_args: object, **_named: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("gangline.rundir.pull.apply", full)
    ferry._round()
    assert ferry.mirrored("r") is None


def test_a_result_that_becomes_visible_late_is_waited_for(
    ferry: Ferry, link: CountingLink, home: Home, clock: Clock
) -> None:
    far(link, LOG)
    assert not ferry.finish("r")
    ferry._round()
    clock.now += 20.0
    ferry._round()
    assert not ferry.finish("r")
    far(link, RESULT, b"{}")
    ferry._round()
    assert ferry.finish("r")
    assert (home.run("r").path / RESULT).read_bytes() == b"{}"


def test_a_result_that_never_comes_is_waited_for_so_long_and_no_longer(
    ferry: Ferry, link: CountingLink, clock: Clock
) -> None:
    far(link, LOG)
    assert not ferry.finish("r")
    ferry._round()
    clock.now += 29.0
    ferry._round()
    assert not ferry.finish("r")
    clock.now += 2.0
    ferry._round()
    assert ferry.finish("r")


def test_a_run_that_never_began_anything_is_over_at_once(ferry: Ferry, link: CountingLink) -> None:
    far(link, "launches/000/job.log")
    assert not ferry.finish("r")
    assert not ferry.finish("none")
    ferry._round()
    assert ferry.finish("r")
    assert ferry.finish("none")


def test_a_full_disk_here_is_said_once_and_the_end_waits_for_it(
    ferry: Ferry, link: CountingLink, home: Home, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for run in ("r", "s"):
        far(link, LOG, b"hello", run=run)
        far(link, RESULT, b"{}", run=run)
        ferry.finish(run)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mirror.os, "pwrite", full)
        for _ in range(4):
            assert ferry._round() >= Pace().retry_s
            clock.now += 60
    assert "No space left" in ferry.problem("r")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert not ferry.finish("r")
    ferry._round()
    assert ferry.finish("r")
    assert ferry.problem("r") == ""
    assert (home.run("s").path / LOG).read_bytes() == b"hello"
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_a_file_that_cannot_be_copied_is_said_and_passed_over_at_the_end(
    ferry: Ferry, link: CountingLink, home: Home, clock: Clock
) -> None:
    far(link, LOG, b"fine")
    far(link, RESULT, b"{}")
    put(home.run("r").path / "attempts/0/bad.json/x", b"a folder is in its place")
    bad = far(link, "attempts/0/bad.log", b"fine")
    (home.run("r").path / "attempts/0/bad.log").mkdir()
    assert not ferry.finish("r")
    ferry._round()
    assert "bad.log" in ferry.problem("r")
    assert not ferry.finish("r")
    clock.now += 31.0
    ferry._round()
    assert ferry.finish("r")
    bad.unlink()
    clock.now += 31.0
    ferry._round()
    ferry._round()
    assert ferry.problem("r") == ""


def test_large_logs_take_turns_and_leave_room_for_other_things(
    ferry: Ferry, link: CountingLink, home: Home, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(4):
        far(link, f"attempts/0/rank-{rank:05d}.log", b"x" * 3_000_000)
    monkeypatch.setattr(ferry, "_batch_bytes", 1 << 18)
    read = link.read

    def slow(reads: Sequence[tuple[str, str, int, int]]) -> list[bytes | None]:
        clock.now += 0.5
        return read(reads)

    monkeypatch.setattr(link, "read", slow)
    ferry.follow("r")
    rounds = 0
    while ferry._round() == 0.0:
        rounds += 1
        sizes = [home.run("r").attempt(0).log(rank).stat().st_size for rank in range(4)]
        assert max(sizes) - min(sizes) <= 1 << 20
        assert rounds < 100
    assert rounds > 3
    assert [home.run("r").attempt(0).log(rank).stat().st_size for rank in range(4)] == [3_000_000] * 4
    assert ferry._batch_bytes <= 1 << 19


def test_a_slow_line_gets_small_questions(
    ferry: Ferry, link: CountingLink, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    far(link, LOG, b"x" * 3_000_000)
    read = link.read

    def slow(reads: Sequence[tuple[str, str, int, int]]) -> list[bytes | None]:
        clock.now += sum(one[3] for one in reads) / 50_000
        return read(reads)

    monkeypatch.setattr(link, "read", slow)
    ferry.follow("r")
    for _ in range(5):
        ferry._round()
    assert ferry._batch_bytes == 1 << 16
