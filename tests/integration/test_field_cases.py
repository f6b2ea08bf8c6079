"""Troubles that people have had, through the real server and command line. One server for all of them."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gangline.client.client import Client
from gangline.client.connection import connect
from gangline.domain.phase import TERMINAL
from gangline.rundir.home import Home

pytestmark = pytest.mark.integration

GANGLINE = str(Path(sys.executable).with_name("gangline"))
DEADLINE_S = 120.0
WAIT_FOR = """
import os, sys, time
def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.02)
"""
COUNT = """
import os, signal, sys, time
stopping = []
signal.signal(signal.SIGTERM, lambda *_: stopping.append(1))
number = 0
with open(sys.argv[1], "w") as side:
    while not stopping:
        number += 1
        side.write(f"{number}\\n")
        side.flush()
        print(number, flush=True)
        if sys.argv[2] == "crash" and number == 40:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.02)
"""


@pytest.fixture
def client(shared_server: Path) -> Iterator[Client]:
    with connect(Home(shared_server)) as client:
        yield client


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "gangline.yaml").touch()
    (folder / "gangline.yaml").write_text("pool: local\n")
    return folder


class Lines:
    """The command line, in a project."""

    def __init__(self, project: Path, client: Client) -> None:
        self.project = project
        self.client = client
        self.open: list[str] = []

    def write(self, name: str, text: str) -> None:
        (self.project / name).write_text(textwrap.dedent(text))

    def __call__(self, *words: str, stdin: int = subprocess.DEVNULL) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [GANGLINE, *words],
            cwd=self.project,
            stdin=stdin,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    def submit(self, *words: str, stdin: int = subprocess.DEVNULL) -> str:
        """The id of a new run."""
        done = self("submit", "--json", *words, stdin=stdin)
        assert done.returncode == 0, done.stderr
        run_id = str(json.loads(done.stdout)["id"])
        self.open.append(run_id)
        return run_id

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + DEADLINE_S
        while not (found := condition()):
            assert time.monotonic() < deadline, f"{what}: not within {DEADLINE_S} s"
            time.sleep(0.05)
        return found

    def until_phase(self, run_id: str, phase: str) -> None:
        self.until(lambda: self.client.run(run_id)["phase"] == phase, f"{run_id} is {phase}")

    def ended(self, run_id: str) -> Mapping[str, Any]:
        ended = self.client.wait(run_id, timeout_s=DEADLINE_S)
        assert ended["phase"] in {phase.value for phase in TERMINAL}, ended
        return ended

    def log(self, run_id: str, rank: int = 0) -> str:
        return b"".join(self.client.raw_log(run_id, rank)).decode()


@pytest.fixture
def lines(project: Path, client: Client) -> Iterator[Lines]:
    found = Lines(project, client)
    yield found
    for run_id in found.open:
        if client.run(run_id)["phase"] not in {phase.value for phase in TERMINAL}:
            client.stop(run_id, grace_s=0.0)
            client.wait(run_id, timeout_s=DEADLINE_S)


def test_what_was_submitted_runs_whatever_is_edited_while_it_waits(lines: Lines, tmp_path: Path):  # E1
    every_cpu = str(lines.client.pools()[0]["cpus"])
    lines.write("hold.py", f"{WAIT_FOR}\nwait_for(sys.argv[1])\n")
    lines.write("train.py", "import part\nprint('as it was', part.VALUE)\n")
    lines.write("part.py", "VALUE = 1\n")
    holding = lines.submit("--cpus-per-rank", every_cpu, "hold.py", str(tmp_path / "go"))
    lines.until_phase(holding, "running")
    waiting = lines.submit("--cpus-per-rank", every_cpu, "train.py")
    lines.write("train.py", "raise SystemExit('edited')\n")
    (lines.project / "part.py").unlink()
    assert lines.client.run(waiting)["phase"] == "queued"
    (tmp_path / "go").touch()
    assert lines.ended(holding)["phase"] == "succeeded"
    assert lines.ended(waiting)["phase"] == "succeeded"
    assert lines.log(waiting) == "as it was 1\n"


@pytest.mark.parametrize("start", ["exec", "warm"])
def test_the_environment_that_was_named_is_the_one_that_runs(lines: Lines, tmp_path: Path, start: str):  # E3
    venv = tmp_path / "second"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True, stdin=subprocess.DEVNULL)
    lines.write("train.py", "import sys\nprint(sys.executable, sys.prefix)\n")
    run_id = lines.submit("--nodes", "2", "--python", str(venv), "--start", start, "train.py")
    assert lines.ended(run_id)["phase"] == "succeeded"
    assert [lines.log(run_id, rank) for rank in range(2)] == [f"{venv}/bin/python {venv}\n"] * 2
    run = lines.client.run(run_id)
    assert run["spec"]["environment"]["python"] == f"{venv}/bin/python"
    assert run["attempts"][0]["start_mode"] == start


def test_an_environment_that_is_not_there_is_refused_before_anything_waits(lines: Lines, tmp_path: Path):  # E3
    lines.write("train.py", "")
    before = [run["id"] for run in lines.client.list_runs(limit=None)]
    done = lines("submit", "--python", str(tmp_path / "gone"), "train.py")
    assert done.returncode == 64
    assert f"{tmp_path}/gone" in done.stderr
    assert [run["id"] for run in lines.client.list_runs(limit=None)] == before


@pytest.mark.parametrize("start", ["exec", "warm"])
def test_a_question_on_stdin_meets_its_end_at_once(lines: Lines, start: str):  # E4
    lines.write("train.py", "import sys\nprint(repr(sys.stdin.read()), sys.stdin.isatty())\ninput('choose: ')\n")
    read, write = os.pipe()  # nobody ever writes or closes
    ours, theirs = pty.openpty()
    try:
        runs = [lines.submit("--start", start, "train.py", stdin=stdin) for stdin in (read, theirs)]
        for run_id in runs:
            assert lines.ended(run_id)["phase"] == "failed"
            assert lines.log(run_id).startswith("'' False\n")
            assert "EOFError" in lines.log(run_id)
    finally:
        for descriptor in (read, write, ours, theirs):
            os.close(descriptor)


def test_a_log_without_line_ends_is_seen_at_once_and_costs_no_memory(lines: Lines, tmp_path: Path):  # G1
    lines.write(
        "train.py",
        f"""{WAIT_FOR}
out = sys.stdout
block = "".join(f"\\rstep {{number:06}} of many" for number in range(10_000))
for _ in range(10_000_000 // len(block)):
    out.write(block)
for _ in range(10):
    out.write("x" * 1_000_000)
out.write("\\x1b[2A\\x1b[31mred\\x1b[0m first mark")
out.flush()
wait_for(sys.argv[1] + "/more")
print(time.time(), file=open(sys.argv[1] + "/stamp", "w"), flush=True)
out.write(" second mark")
out.flush()
wait_for(sys.argv[1] + "/end")
""",
    )
    before = lines.client.health()["rss_bytes"]
    run_id = lines.submit("train.py", str(tmp_path))
    seen, most = "", before
    for item in lines.client.follow(run_id, attempt=0):
        seen = (seen + item.get("text", ""))[-100:]
        most = max(most, lines.client.health()["rss_bytes"])
        if seen.endswith("first mark"):
            (tmp_path / "more").touch()
        if seen.endswith("second mark"):
            delay_s = time.time() - float((tmp_path / "stamp").read_text())
            (tmp_path / "end").touch()
    assert delay_s < 20.0  # it would be more than a minute if a line without an end were waited for
    assert most - before < 64 << 20
    shown = lines("logs", run_id, "--tail", "1").stdout
    assert shown.endswith("red first mark second mark\n")
    assert not {"\x1b", "\r"} & set(shown)


@pytest.mark.parametrize("how", ["stop", "crash", "limit"])
def test_everything_that_was_written_before_the_end_is_in_the_log(lines: Lines, tmp_path: Path, how: str):  # G2
    lines.write("train.py", COUNT)
    side = tmp_path / "side"
    run_id = lines.submit(*(["--time-limit", "2s"] if how == "limit" else []), "train.py", str(side), how)
    if how == "stop":
        lines.until(lambda: side.exists() and side.stat().st_size > 50, "it counts")
        assert lines("stop", run_id).returncode == 0
    ended = lines.ended(run_id)
    assert (ended["phase"], ended["reason"]) == {
        "stop": ("stopped", "stopped_by_user"),
        "crash": ("failed", "killed"),
        "limit": ("failed", "time_limit"),
    }[how]
    assert lines.log(run_id) == side.read_text()
    assert side.read_text().splitlines()[-1] == lines("logs", run_id, "--tail", "1").stdout.strip()


def test_python_behind_a_shell_has_its_whole_grace(lines: Lines):  # F2
    lines.write(
        "t.py",
        """
        import os, signal, sys, time
        def save(*_):
            with open(os.environ["GANGLINE_RUN_DIR"] + f"/saved-{os.environ['RANK']}", "w") as file:
                for part in range(12):
                    file.write(f"{part}\\n")
                    file.flush()
                    time.sleep(0.5)
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        print("up", flush=True)
        while True:
            time.sleep(0.05)
        """,
    )
    run_id = lines.submit("--nodes", "2", "--stop-grace", "60s", "--", "bash", "-c", f"{sys.executable} t.py; true")
    lines.until(lambda: lines.log(run_id, 0) == lines.log(run_id, 1) == "up\n", "both ranks are up")
    assert lines("stop", run_id).returncode == 0
    assert lines.ended(run_id)["phase"] == "stopped"
    folder = Path(lines.client.run(run_id)["run_dir"])
    assert [len((folder / f"saved-{rank}").read_text().splitlines()) for rank in range(2)] == [12, 12]
