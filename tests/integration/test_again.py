"""Runs made from runs, through a real server and real ranks: branch, rerun, compare, a debugger in a real terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from typing_extensions import Self

pytestmark = pytest.mark.integration
DEADLINE_S = 60.0

SCRIPT = """
import os, sys, time
import gangline
context = gangline.current()
latest = gangline.latest_checkpoint()
start = 0 if latest is None else latest.step
print(f"rank {context.rank} of {context.world_size} starts at {start}", flush=True)
last, fails = int(sys.argv[1]), os.environ.get("FAILS") == str(context.rank)
for step in range(start + 10, last + 1, 10):
    gangline.log({"loss": 100.0 / step}, step=step)
    with gangline.checkpoint(step) as path:
        (path / f"rank-{context.rank}.txt").write_text(str(step))
if fails:
    while not (path / "manifest.json").exists():
        time.sleep(0.01)
    secret_number = 41 + 1
    raise ValueError("this rank was told to fail")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    return folder


def gangline(*args: str, home: Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    program = str(Path(sys.executable).with_name("gangline"))
    env = {**os.environ, "GANGLINE_HOME": str(home)}
    return subprocess.run(
        [program, *args], cwd=cwd, env=env, text=True, capture_output=True, timeout=2 * DEADLINE_S, check=False
    )


@pytest.fixture
def command(shared_server: Path, project: Path) -> Callable[..., str]:
    """A command, which has to end with the code that is expected; its stdout."""

    def run(*args: str, code: int = 0) -> str:
        done = gangline(*args, home=shared_server, cwd=project)
        assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    return run


@pytest.fixture
def failed(command) -> str:
    """A run of two ranks that has saved at 10, 20 and 30, and whose rank 1 has failed then."""
    options = ("--procs-per-node", "2", "--env", "FAILS=1", "--wait", "--json")
    return json.loads(command("submit", *options, "train.py", "30", code=1))["id"]


def test_a_branch_from_an_earlier_checkpoint_is_not_overtaken_by_what_it_left(command, failed, shared_server):
    wrong = gangline("resume", failed, "--checkpoint", "25", home=shared_server)
    assert f"Complete ones of run `{failed}`: 10, 20, 30." in wrong.stderr
    command("resume", failed, "--checkpoint", "10", "--procs-per-node", "1", "--max-restarts", "1")
    command("wait", failed)  # rank 1 is gone with the second rank, so nothing fails any more
    assert "rank 0 of 1 starts at 10" in command("logs", failed, "--rank", "0")
    shown = json.loads(command("show", failed, "--json"))
    assert (shown["revision"], shown["procs_per_node"]) == (1, 1)
    assert [event["kind"] for event in shown["events"]].count("revised") == 1
    saved = [(item["step"], item["attempt"]) for item in shown["checkpoints"] if item["latest"]]
    assert saved == [(30, 1)]


def test_a_rerun_takes_the_stored_code_and_compare_shows_what_was_other(command, failed, project):
    (project / "train.py").write_text("raise SystemExit('the working tree is not looked at')\n")
    made = json.loads(command("rerun", "--last-failed", "--env", "FAILS=no", "--wait", "--json", "--", "20"))
    assert (made["rerun_of"], made["phase"]) == (failed, "succeeded")
    assert "rank 0 of 2 starts at 0" in command("logs", made["id"], "--rank", "0")
    found = json.loads(command("compare", failed, made["id"], "--json"))
    assert {row["key"]: row["values"] for row in found["spec"]} == {
        "args": [["30"], ["20"]],
        "environment.env.FAILS": ["1", "no"],
    }
    assert found["code"][0]["same"]
    assert [value["last"] for value in found["metrics"][0]["values"]] == [100 / 30, 5.0]
    told = json.loads(command("report", failed, "-o", "run.zip", "--json"))
    assert (told["size_bytes"], told["file"]) == ((project / "run.zip").stat().st_size, str(project / "run.zip"))
    workers = json.loads(command("compare", failed, "--ranks", "--json"))
    assert [(one["rank"], one["last_step"]) for one in workers["ranks"]] == [(0, 30), (1, 30)]
    assert workers["ranks"][1]["exit_code"] == 1


def test_a_debugger_in_a_real_terminal_stops_where_the_rank_failed(command, failed, shared_server):
    with Terminal(["debug", failed, "--pdb", "--checkpoint", "20"], shared_server) as terminal:
        terminal.expect("Rank 1 is debugged here")
        terminal.expect("uncaught ValueError: this rank was told to fail")
        terminal.expect("(Pdb) ")
        terminal.type("p secret_number\n")
        terminal.expect("42")
        terminal.expect("(Pdb) ")
        terminal.type("nonsense")  # a line that is dropped
        terminal.expect(
            "nonsense"
        )  # Ctrl-C also drops what readline has seen coming and not read; it then waits for more
        terminal.type_until("\x03", "(Pdb) ")
        terminal.type("p start\n")
        terminal.expect("20")
        terminal.expect("(Pdb) ")
        terminal.type("\x04")
        assert terminal.code() == 130, terminal.seen
    runs = json.loads(command("ps", "--label", f"debug={failed}", "--json"))
    assert [(run["phase"], run["debug_of"], run["restarts"]) for run in runs] == [("stopped", failed, 0)]
    original = json.loads(command("show", failed, "--json"))
    assert [item["step"] for item in original["checkpoints"]] == [10, 20, 30]


def test_a_breakpoint_an_interrupt_and_a_lost_terminal(command, project, shared_server):
    (project / "loop.py").write_text(LOOP)
    run = json.loads(command("submit", "--procs-per-node", "2", "--json", "loop.py"))["id"]
    command("stop", run, "--wait", "--grace", "0")
    with Terminal(["debug", run, "--pdb", "--fresh"], shared_server) as terminal:
        terminal.expect("breakpoint")
        terminal.expect("(Pdb) ")
        terminal.type("p here\n")
        terminal.expect("'at the breakpoint'")
        terminal.expect("(Pdb) ")
        terminal.hang_up()
    debug = json.loads(command("ps", "--label", f"debug={run}", "--json"))[0]["id"]
    with Terminal(["debug", debug, "--attach"], shared_server) as terminal:
        terminal.expect("-> ")
        terminal.expect("(Pdb) ")
        terminal.type("c\n")
        terminal.expect("counting")
        terminal.type("\x03")
        terminal.expect("stopped here")
        terminal.expect("(Pdb) ")
        terminal.type("up 5\np counter > 0\n")
        terminal.expect("True")
        terminal.expect("(Pdb) ")
        terminal.type("q\n")
        assert terminal.code() == 130, terminal.seen


LOOP = """
import os, time
here = "at the breakpoint"
breakpoint()
counter = 0
while True:
    counter += 1
    print("counting", flush=True)
    time.sleep(0.1)
"""


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, args: list[str], home: Path) -> None:
        self.seen = ""
        self._at = 0
        env = {**os.environ, "GANGLINE_HOME": str(home), "TERM": "dumb"}
        program = str(Path(sys.executable).with_name("gangline"))
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):  # whoever started the tests may ignore them
                signal.signal(number, signal.SIG_DFL)
            os.execve(program, [program, *args], env)
        self._code: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._code is None:
            self.hang_up()

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def type_until(self, key: str, text: str) -> None:
        """Press a key, again if need be, until the text is shown.

        A Ctrl-C in the microseconds between readline's prompt and its wait is noticed by CPython at the next key only.
        """
        deadline = time.monotonic() + DEADLINE_S
        while text not in self.seen[self._at :]:
            assert time.monotonic() < deadline, f"{text!r} was not shown:\n{self.seen}"
            self.type(key)
            pause = time.monotonic() + 1.0
            while text not in self.seen[self._at :] and time.monotonic() < pause:
                self._read()
        self._at = self.seen.index(text, self._at) + len(text)

    def expect(self, text: str) -> None:
        """Wait until the text is shown, behind what was expected before."""
        deadline = time.monotonic() + DEADLINE_S
        while text not in self.seen[self._at :]:
            assert time.monotonic() < deadline, f"{text!r} was not shown:\n{self.seen}"
            assert self._read(), f"it ended before {text!r} was shown:\n{self.seen}"
        self._at = self.seen.index(text, self._at) + len(text)

    def code(self) -> int:
        """Its exit code; waits for its end."""
        deadline = time.monotonic() + DEADLINE_S
        while self._read():
            assert time.monotonic() < deadline, self.seen
        self._code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        os.close(self._fd)
        return self._code

    def hang_up(self) -> None:
        """As when the window is closed."""
        self._code = -1
        os.kill(self._pid, signal.SIGHUP)
        deadline = time.monotonic() + DEADLINE_S
        while os.waitpid(self._pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(self._pid, signal.SIGKILL)
            time.sleep(0.05)
        with suppress(OSError):
            os.close(self._fd)

    def _read(self) -> bool:
        """Take in what is shown; False at its end."""
        ready, _, _ = select.select([self._fd], [], [], 0.2)
        if not ready:
            return True
        try:
            data = os.read(self._fd, 65536)
        except OSError:
            return False
        self.seen += data.decode("utf-8", "replace").replace("\r\n", "\n")
        return bool(data)
