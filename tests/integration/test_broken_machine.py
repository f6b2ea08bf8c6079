"""A leader that is frozen and a disk that is really full, under a real server."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.conftest import lack

from gangline.client import Client, connect, submit
from gangline.domain.errors import StorageFull
from gangline.domain.spec import Resources, RunSpec
from gangline.rundir.home import Home
from gangline.rundir.serving import is_served

pytestmark = pytest.mark.integration
DEADLINE_S = 120.0


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {DEADLINE_S} s"
        time.sleep(0.05)


def project_of(folder: Path, script: str) -> Path:
    folder.mkdir()
    (folder / "train.py").write_text(script)
    return folder


def test_a_launch_whose_leader_is_frozen_is_followed_by_another(home, tmp_path, monkeypatch):
    monkeypatch.setenv("GANGLINE_SERVER_LEADER_PATIENCE", "7")
    project = project_of(tmp_path / "project", "import time\ntime.sleep(600)\n")
    with connect(Home(home)) as client:
        run = submit(RunSpec(entry="train.py"), root=project, client=client)["id"]
        wait_until(lambda: client.run(run)["phase"] == "running", "it runs")
        os.kill(client.run(run)["attempts"][0]["nodes"][0]["agent_pid"], signal.SIGSTOP)
        wait_until(lambda: len(client.run(run)["attempts"]) > 1, "another launch begins")
        first = client.run(run)["attempts"][0]
        assert (first["outcome"], first["reason"]) == ("failed", "node_lost")
        assert "has shown no sign of life for" in first["message"]
        client.stop(run, grace_s=0)
        assert client.wait(run, timeout_s=DEADLINE_S)["phase"] == "stopped"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own; ours to fill."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(disk)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        lack(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.fixture
def full_home(small_disk: Path, home: Path) -> Path:
    """A state folder whose runs lie on the small disk; the database has room, so that the end can be stored."""
    home.mkdir()
    (home / "runs").symlink_to(small_disk)
    return home


FILL = """
import os, time
ballast = os.environ["GANGLINE_RUN_DIR"] + "/ballast"
if os.environ["GANGLINE_ATTEMPT"] == "0":
    with open(ballast, "wb", buffering=0) as file:
        while True:
            file.write(os.urandom(1 << 16))
print("went on", flush=True)
"""


@pytest.mark.root
def test_a_disk_that_a_run_fills_ends_it_as_storage_and_it_goes_on_once_there_is_room(full_home, tmp_path):
    project = project_of(tmp_path / "project", FILL)
    with connect(Home(full_home)) as client:
        spec = RunSpec(entry="train.py", resources=Resources(procs_per_node=1))
        run = submit(spec, root=project, client=client)["id"]
        ballast = Path(client.run(run)["run_dir"], "ballast")
        over = client.wait(run, timeout_s=DEADLINE_S)
        assert (over["phase"], over["reason"]) == ("failed", "storage"), over["message"]
        assert "No space left on device" in over["message"]
        ballast.unlink()
        client.resume(run, patience_s=DEADLINE_S)
        assert client.wait(run, timeout_s=DEADLINE_S)["phase"] == "succeeded"
        assert b"".join(client.raw_log(run, 0)) == b"went on\n"


def fill(disk: Path) -> None:
    """Take all that is free, also in small pieces."""
    for size in (1 << 20, 1 << 10, 1):
        ballast = disk / f"ballast-{time.monotonic_ns()}"
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(size)) == size:
                pass


@contextmanager
def kept_full(disk: Path) -> Iterator[None]:
    """As long as this lasts, each byte that becomes free is taken at once."""
    over = threading.Event()

    def take() -> None:
        with (disk / "taken").open("wb", buffering=0) as file:
            while not over.is_set():
                with suppress(OSError):
                    file.write(bytes(512))
                    continue
                over.wait(0.0005)

    taker = threading.Thread(target=take)
    fill(disk)
    taker.start()
    try:
        yield
    finally:
        over.set()
        taker.join()


WAITS = """
import pathlib, sys, time
print("waits", flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.05)
sys.exit(int(pathlib.Path(sys.argv[1]).read_text()))
"""


@pytest.mark.root
@pytest.mark.parametrize(("code", "phase"), [(0, "succeeded"), (5, "failed")])
def test_an_end_on_a_disk_that_stays_full_is_not_lost(full_home, small_disk, tmp_path, code, phase):
    project, go = project_of(tmp_path / "project", WAITS), tmp_path / "go"
    spec = RunSpec(entry="train.py", args=(str(go),), resources=Resources(procs_per_node=1))
    with connect(Home(full_home)) as client:
        run = submit(spec, root=project, client=client)["id"]
        wait_until(lambda: b"waits" in b"".join(client.raw_log(run, 0)), "it runs")
        with kept_full(small_disk):
            go.write_text(str(code))
            over = client.wait(run, timeout_s=DEADLINE_S)
        assert (over["phase"], len(client.run(run)["attempts"])) == (phase, 1), over["message"]


def end_server(client: Client, home: Home) -> None:
    client.stop_server()
    wait_until(lambda: not is_served(home), "the server has ended")


@pytest.mark.root
@pytest.mark.parametrize("goes_on", [True, False], ids=["served", "no server"])
def test_on_a_full_disk_runs_can_be_looked_at_and_removed_which_makes_room(small_disk, tmp_path, goes_on):
    home, project = Home(small_disk / "home"), project_of(tmp_path / "project", "print('hi')")
    spec = RunSpec(entry="train.py", resources=Resources(procs_per_node=1))
    with connect(home) as client:
        run = submit(spec, root=project, client=client)["id"]
        assert client.wait(run, timeout_s=DEADLINE_S)["phase"] == "succeeded"
        wait_until((home.path / "reserve").exists, "room is set aside")
        Path(home.run(run).path, "large").write_bytes(bytes(8 << 20))
        if not goes_on:
            end_server(client, home)
    fill(small_disk)
    with connect(home) as client:
        assert [one["id"] for one in client.list_runs()] == [run]
        assert b"".join(client.raw_log(run, 0)) == b"hi\n"
        fill(small_disk)  # also with what was set aside
        assert client.remove(run)["freed_bytes"] >= 8 << 20
        assert client.list_runs() == []
        wait_until((home.path / "reserve").exists, "room is set aside again")
        end_server(client, home)


@pytest.mark.root
def test_a_disk_that_takes_nothing_at_all_is_said_as_storage_where_no_server_runs(small_disk):
    home = Home(small_disk / "home").create()
    fill(small_disk)
    with pytest.raises(StorageFull, match="takes no more") as caught:
        connect(home)
    assert caught.value.exit_code == 74
