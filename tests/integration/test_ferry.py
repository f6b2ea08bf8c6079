"""The ferry at work, over a bridge that is a child of this process."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from gangline.backends.slurm.ferry import Ferry, Pace
from gangline.backends.slurm.session import Session
from gangline.domain.pool import SlurmPool
from gangline.rundir.home import Home

pytestmark = pytest.mark.integration
WITHIN_S = 90.0
LOG = "attempts/0/rank-{:05d}.log"


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    pool = SlurmPool(name="a", work=str(tmp_path / "work"), python=sys.executable)
    session = Session(pool, tmp_path / "home")
    yield session
    session.close()


@pytest.fixture
def ferry(session: Session, tmp_path: Path) -> Iterator[Ferry]:
    ferry = Ferry(session, Home(tmp_path / "home"), name="a", pace=Pace(retry_s=0.2, result_patience_s=1.0))
    yield ferry
    ferry.close()


def test_no_byte_is_lost_or_doubled_however_often_the_bridge_is_killed(
    session: Session, ferry: Ferry, tmp_path: Path
) -> None:
    far, near = tmp_path / "work/runs/r", Home(tmp_path / "home").run("r")
    written = dict.fromkeys(range(4), b"")
    seed = random.randrange(1 << 30)
    print("seed", seed)  # shown when it fails
    dice = random.Random(seed)
    (far / "attempts/0").mkdir(parents=True)
    near.control.parent.mkdir(parents=True)
    ferry.follow("r")
    ferry.start()
    for number in range(60):
        for rank in written:
            data = b"%d %d " % (rank, number) + b"x" * dice.randrange(20_000) + b"\n"
            written[rank] += data
            with (far / LOG.format(rank)).open("ab") as file:
                file.write(data)
        with near.control.open("ab") as file:
            file.write(b'{"seq": %d}\n' % number)
        channel = session._channel
        if number % 15 == 7 and channel is not None:
            time.sleep(dice.random() * 0.3)
            os.kill(channel._started.pid, signal.SIGKILL)
            session.retry()
        time.sleep(0.02)
    (far / "attempts/0/result.json").write_bytes(b"{}")

    def is_finished() -> bool:
        session.retry()
        return ferry.finish("r")

    wait_for(is_finished, f"the mirror is not complete: {ferry.problem('r')}")
    for rank, data in written.items():
        assert near.attempt(0).log(rank).read_bytes() == data
    assert near.attempt(0).result.read_bytes() == b"{}"
    wait_for(lambda: (far / "control.jsonl").read_bytes() == near.control.read_bytes(), "requests are missing")


def test_logs_and_requests_are_there_in_a_moment(session: Session, ferry: Ferry, tmp_path: Path) -> None:
    far, near = tmp_path / "work/runs/r", Home(tmp_path / "home").run("r")
    (far / "attempts/0").mkdir(parents=True)
    near.path.mkdir(parents=True)
    session.hello()
    ferry.follow("r")
    ferry.start()
    log = near.attempt(0).log(0)
    for number in range(1, 4):
        with (far / LOG.format(0)).open("ab") as file:
            file.write(b"1\n")
        wait_for(partial(has_size, log, 2 * number), "the log does not come")
        with near.control.open("ab") as file:
            file.write(b"{}\n")
        wait_for(partial(has_size, far / "control.jsonl", 3 * number), "the request does not come")


def has_size(path: Path, size_bytes: int) -> bool:
    return path.exists() and path.stat().st_size == size_bytes


def test_a_ferry_ends_although_the_far_side_hangs(session: Session, ferry: Ferry, tmp_path: Path) -> None:
    (tmp_path / "work/runs/r/attempts/0").mkdir(parents=True)
    session.hello()
    ferry.follow("r")
    ferry.start()
    pid = session._channel._started.pid  # type: ignore[union-attr]
    os.kill(pid, signal.SIGSTOP)
    time.sleep(0.5)
    closing = threading.Thread(target=ferry.close)
    closing.start()
    session.close()
    closing.join(WITHIN_S)
    assert not any(thread.is_alive() for thread in ferry._threads)
