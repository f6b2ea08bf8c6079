from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from gangline.bridge import running
from gangline.bridge.environ import extend_by_login, render_command_environ
from gangline.bridge.running import Commands


@pytest.fixture
def commands() -> Commands:
    return Commands({"PATH": os.defpath})


def test_a_command_gets_its_arguments_and_input_as_they_are(commands: Commands) -> None:
    done = commands.run(["sh", "-c", 'printf %s "$1"; cat >&2; exit 3', "x", "$HOME 'q' *"], stdin=b"in\0put" * 50_000)
    assert done.rc == 3
    assert done.out == b"$HOME 'q' *"
    assert done.err == b"in\0put" * 50_000


def test_a_command_that_reads_nothing_is_no_trouble(commands: Commands) -> None:
    assert commands.run(["true"], stdin=b"x" * 1_000_000).rc == 0


def test_a_signal_is_told_as_a_negative_code(commands: Commands) -> None:
    assert commands.run(["sh", "-c", "kill -9 $$"]).rc == -9


def test_a_command_that_takes_too_long_is_killed_with_what_it_started(commands: Commands, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    done = commands.run(["sh", "-c", f"echo begun; sleep 600 & echo $! > {pid}; wait"], timeout_s=3.0)
    assert done.rc is None
    assert done.out == b"begun\n"
    assert_gone(int(pid.read_text()))


def test_what_a_command_leaves_behind_holds_nothing_up(commands: Commands, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    began = time.monotonic()
    done = commands.run(["sh", "-c", f"sleep 30 & echo $! > {pid}; echo done"], timeout_s=60)
    assert (done.rc, done.out) == (0, b"done\n")
    assert time.monotonic() - began < 25
    os.kill(int(pid.read_text()), 9)


def test_a_command_that_is_not_there_says_so(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "fetch_login_environ", dict)
    done = commands.run(["qlist", "--me"])
    assert done.rc == 127
    assert done.err.startswith(b"qlist: command not found")
    assert commands.run(["/etc/passwd"]).rc == 126


def test_a_command_is_also_looked_for_where_a_login_shell_does(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    (tmp_path / "qinfo").write_text('#!/bin/sh\necho "$SLURM_CONF $LEFT"\n')
    (tmp_path / "qinfo").chmod(0o755)

    def login() -> dict[str, str]:
        asked.append(1)
        return {"PATH": f"/nowhere:{tmp_path}", "SLURM_CONF": "/etc/here", "LEFT": "no"}

    monkeypatch.setattr(running, "fetch_login_environ", login)
    for _ in range(2):
        assert commands.run(["qinfo"]).out == b"/etc/here \n"
    assert commands.find("qinfo") == f"{tmp_path}/qinfo"
    assert len(asked) == 1


def test_endless_output_is_cut_off(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_MOST_PRINTED_BYTES", 1000)
    with pytest.raises(OverflowError, match="printed more"):
        commands.run(["yes"])


def test_the_end_ends_what_runs(commands: Commands, tmp_path: Path) -> None:
    pid, found = tmp_path / "pid", []
    argv = ["sh", "-c", f"echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 600"]
    thread = threading.Thread(target=lambda: found.append(commands.run(argv, timeout_s=600)))
    thread.start()
    deadline = time.monotonic() + 30
    while not pid.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    commands.close()
    thread.join(30)
    assert found[0].rc == -15
    assert_gone(int(pid.read_text()))
    assert commands.run(["true"]).rc == 126


def test_the_environment_keeps_settings_and_loses_formats_and_an_outer_job() -> None:
    environ = {"PATH": "/bin", "SQUEUE_FORMAT": "%i", "SLURM_JOB_ID": "7", "SLURM_CONF": "/c", "SBATCH_ACCOUNT": "a"}
    environ |= {"PYTHONPATH": "/x", "GANGLINE_HOME": "/h", "OMPI_COMM_WORLD_RANK": "1", "CUDA_VISIBLE_DEVICES": "0"}
    assert render_command_environ(environ) == {"PATH": "/bin", "SLURM_CONF": "/c"}, "SBATCH_… overrides a batch script"
    extended = extend_by_login({"PATH": "/bin", "SLURM_CONF": "/mine"}, {"PATH": "/bin:/opt/x", "SLURM_CONF": "/c"})
    assert extended["PATH"].startswith("/bin:/opt/x:")
    assert extended["SLURM_CONF"] == "/mine"


def assert_gone(pid: int) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return
        if state == "Z":
            return
        time.sleep(0.01)
    raise AssertionError(f"{pid} lives")
