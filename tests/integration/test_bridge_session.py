"""A session with a bridge that is a child of this process: everything but ssh."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gangline.agent.bundle import bundle_name, render_bundle
from gangline.backends.slurm.session import Session
from gangline.domain.errors import InvalidRequest, SpecInvalid, Transient
from gangline.domain.pool import SlurmPool
from gangline.rundir.confined import UnsafePath
from gangline.rundir.mirror import Gap

pytestmark = pytest.mark.integration
WITHIN_S = 60.0
BUNDLE = render_bundle()


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Session]]:
    sessions: list[Session] = []

    def open_one(**settings: float) -> Session:
        pool = SlurmPool(name="a", work=str(tmp_path / "work"), python=sys.executable)
        sessions.append(Session(pool, tmp_path / "home", bundle=BUNDLE, **settings))  # type: ignore[arg-type]
        return sessions[-1]

    yield open_one
    for session in sessions:
        session.close()


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def bridge_pid(session: Session) -> int:
    session.hello()
    return session._channel._started.pid  # type: ignore[union-attr]


def test_everything_that_a_link_can_do(opened: Callable[..., Session], tmp_path: Path) -> None:
    session, work = opened(), tmp_path / "work"
    hello = session.hello()
    assert (hello.host, os.path.realpath(hello.python)) == (os.uname().nodename, os.path.realpath(sys.executable))
    assert abs(hello.clock_offset_s) < 5
    assert work.stat().st_mode & 0o777 == 0o700
    assert (work / "agents" / bundle_name(BUNDLE)).read_bytes() == BUNDLE

    assert session.run(["sh", "-c", "cat; echo err >&2; exit 7"], stdin=b"in").out == "in"
    assert session.run(["sleep", "60"], timeout_s=0.2).rc is None

    small, large = b"small", os.urandom(1_300_000)
    digests = {hashlib.sha256(data).hexdigest(): data for data in (small, large, b"")}
    assert session.missing(list(digests)) == list(digests)
    session.store(digests.items())
    assert session.missing(list(digests)) == []
    with pytest.raises(InvalidRequest):
        session.store([(hashlib.sha256(b"x").hexdigest(), b"y")])

    session.write("runs/r/launches/000/launch.json", b"{}")
    assert (work / "runs/r/launches/000/launch.json").stat().st_mode & 0o777 == 0o600
    assert session.append("runs/r/attempts/0/rank-00000.log", 0, b"hello") == 5
    with pytest.raises(Gap):
        session.append("runs/r/attempts/0/rank-00000.log", 9, b"x")
    with pytest.raises(UnsafePath):
        session.write("../x", b"")
    changes = session.changes(["r", "none"], None)
    assert [entry[:2] for entry in changes.files["r"]] == [("attempts/0/rank-00000.log", 5)]
    assert changes.gone == {"none"}
    assert session.changes(["r"], changes.since).files == {}
    assert session.read([("r", "attempts/0/rank-00000.log", 1, 9), ("r", "none", 0, 1)]) == [b"ello", None]

    assert session.probe(str(work / "answers")).writable
    assert session.checkpoints(str(work / "none")) == []
    assert session.python(sys.executable)[1] == hello.python_version
    with pytest.raises(SpecInvalid, match=r"no Python >= 3\.10"):
        session.python("/bin/true")


def test_a_slow_command_holds_nothing_up_and_ends_with_the_bridge(
    opened: Callable[..., Session], tmp_path: Path
) -> None:
    session, pid = opened(), tmp_path / "pid"
    raised: list[BaseException] = []

    def run() -> None:
        try:
            session.run(["sh", "-c", f"echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 600"], timeout_s=600)
        except Transient as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_for(pid.exists, "the command did not start")
    assert session.run(["echo", "hi"]).out == "hi\n"
    session.close()
    thread.join(WITHIN_S)
    assert len(raised) == 1
    wait_for(lambda: is_gone(int(pid.read_text())), "the command outlived the bridge")


def test_a_bridge_that_was_killed_is_started_again(opened: Callable[..., Session]) -> None:
    session = opened()
    pid = bridge_pid(session)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not session._channel.is_open, "its end was not noticed")  # type: ignore[union-attr]
    assert session.run(["echo", "again"]).out == "again\n"
    assert bridge_pid(session) != pid


def test_a_bridge_that_hangs_is_noticed_and_left(opened: Callable[..., Session]) -> None:
    session = opened(ping_every_s=0.2, ping_patience_s=4.0)
    pid = bridge_pid(session)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(Transient, match="lost"):
        session.run(["echo", "hi"], timeout_s=600)
    wait_for(lambda: is_gone(pid), "the old bridge lives")
    assert session.run(["echo", "hi"]).out == "hi\n"


def test_without_its_server_a_bridge_ends(opened: Callable[..., Session]) -> None:
    session = opened()
    pid = bridge_pid(session)
    session._channel._started._in.close()  # type: ignore[union-attr]
    wait_for(lambda: is_gone(pid), "the bridge lives without anybody to ask it")


def test_threads_share_one_bridge(opened: Callable[..., Session]) -> None:
    session, found = opened(), []

    def ask(number: int) -> None:
        found.extend(session.run(["echo", str(number)]).out for _ in range(5))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WITHIN_S)
    assert sorted(found) == sorted(f"{number}\n" for number in range(8) for _ in range(5))


def test_where_the_bridge_cannot_be_started_it_is_said_why_and_not_tried_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for pool, words in (
        (SlurmPool(name="a", work=str(tmp_path / "work"), python="/nowhere/python3"), "no Python >= 3.10"),
        (SlurmPool(name="a", work=str(tmp_path / "work"), python="py'; reboot"), "cannot be started"),
        (SlurmPool(name="a", work=str(tmp_path / "file/work"), python=sys.executable), "work folder"),
    ):
        session = Session(pool, tmp_path / "home", bundle=BUNDLE)
        for _ in range(2):
            with pytest.raises(Transient, match=words):
                session.hello()
        assert session._backoff.tries == 1
        session.retry()
        with pytest.raises(Transient, match=words):
            session.hello()
        session.close()
