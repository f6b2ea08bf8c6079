"""Slurm's commands and `ssh` as programs that say what a test tells them to: for what a healthy cluster never says.

    stubs = Stubs(tmp_path)                              # tmp_path/bin/{sbatch,squeue,sacct,scontrol,scancel,sinfo,ssh}
    env = {**os.environ, **stubs.env}                    # or monkeypatch.setenv("PATH", stubs.env["PATH"])

**Without a word from the test** they play a small cluster. `sbatch` registers a job (id, name and comment from
arguments or `#SBATCH` lines), which stays PENDING; `squeue` (`-h -o %…`, `-O name:,…`, `--json`, `-j`, `-t all`,
`--name`) and `scontrol show job` tell of it, `scancel` ends it, `sacct` says that accounting is off, `ssh` runs its
command on this machine with `sh -c`, as sshd would, stdin and stdout included, and its `-O check|exit|…` succeed.
Tests move jobs: `stubs.change_job("1001", state="RUNNING", nodes="node[01-02]")`, `stubs.forget_job("1001")`.

**Answers** are tried in the order in which they were given: the first whose `match` (a regular expression, searched in
the arguments joined by blanks) is found and that has `times` left is used. See the fields of `Answer`.

    stubs.answer("squeue", err="slurm_load_jobs error: Socket timed out\n", rc=1, times=2)  # twice; then as before
    stubs.answer("sbatch", register=True, err="Socket timed out\n", rc=1, times=1)  # S2: the job is made, and denied
    stubs.answer("sbatch", before="Welcome to Stampede3\n", plain=True)  # S1: a banner, then what it says itself
    stubs.answer("ssh", before="motd 4711\n", after="bye\n", plain=True)  # S7
    stubs.answer("ssh", cut_after_s=0.5, times=1)  # the connection is lost
    stubs.answer("squeue", per_job="{id}|{state}|{comment}\n")  # a line for each registered job
    stubs.answer("sacct", out=text, delay_s=3.0, match="-j 1001")
    stubs.clear("squeue")  # forget what it was told to say

**Calls** are kept in order: `stubs.calls("sbatch")[0].argv`, `.stdin` (the script that `sbatch` was given, by stdin or
by name), `.pid`. Everything is safe for commands that run side by side; each call reads the answers anew.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["COMMANDS", "Answer", "Call", "Stubs", "said_by_sinfo"]

COMMANDS = ("sbatch", "squeue", "sacct", "scontrol", "scancel", "sinfo", "ssh")
SINFO_WIDTHS = (80, 12, 12, 16, 20, 24, 16, 40, 240, 240)
PROGRAM = Path(__file__).with_name("stubprogram.py")


def said_by_sinfo(lines: str) -> str:
    """What `sinfo` answers, from `partition|nodes|cpus|memory|limit|size|state|processors|gres|used` on each line."""
    told = ""
    for line in lines.splitlines():
        cells = line.split("|")
        is_row = len(cells) == len(SINFO_WIDTHS)
        told += "".join(cell.ljust(width) for cell, width in zip(cells, SINFO_WIDTHS, strict=True)) if is_row else line
        told += "\n"
    return told


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a command says, and does."""

    out: str = ""
    err: str = ""
    rc: int = 0
    delay_s: float = 0.0
    """Waits so long before it says anything."""
    times: int | None = None
    """How often; None: always."""
    match: str = ""
    register: bool = False
    """`sbatch`: the job is made first, whatever is said then."""
    per_job: str = ""
    """This text for each registered job, after `out`; its {id}, {name}, {comment}, {state}, … are filled in."""
    plain: bool = False
    """Does and says what it would without this answer, between `before` and `after`."""
    before: str = ""
    after: str = ""
    cut_after_s: float | None = None
    """`ssh`: the command runs, and after so many seconds the connection is gone (255)."""
    die_by: int | None = None
    """Ends by this signal, after it has said all."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One start of a stub."""

    command: str
    argv: list[str]
    stdin: str
    pid: int
    time: float
    cwd: str


class Stubs:
    """The near side: writes what the programs read, reads what they wrote."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "stubs"
        self.bin = folder / "bin"
        self.folder.mkdir(parents=True)
        self.bin.mkdir(exist_ok=True)
        self._write({"answers": {}, "jobs": {}, "next": 1001})
        for name in COMMANDS:
            self._install(name)

    @property
    def env(self) -> dict[str, str]:
        """PATH with the stubs ahead of all else."""
        return {"PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}"}

    def answer(self, command: str, **answer: Any) -> None:
        """From now on this command says this; arguments as the fields of `Answer`."""
        assert command in COMMANDS, command
        with self._locked() as state:
            state["answers"].setdefault(command, []).append(asdict(Answer(**answer)))

    def clear(self, command: str) -> None:
        with self._locked() as state:
            state["answers"].pop(command, None)

    def remove(self, command: str) -> None:
        """This command is not installed."""
        (self.bin / command).unlink()

    def calls(self, command: str | None = None) -> list[Call]:
        with self._locked():
            lines = self._calls.read_text().splitlines() if self._calls.exists() else []
        calls = [Call(**json.loads(line)) for line in lines]
        return [call for call in calls if command in (None, call.command)]

    def jobs(self) -> dict[str, dict[str, Any]]:
        """All registered jobs by id, as `register` in `stubprogram.py` makes them."""
        with self._locked() as state:
            return dict(state["jobs"])

    def change_job(self, job: str, **fields: Any) -> None:
        """Move a registered job, or register one by hand."""
        with self._locked() as state:
            state["jobs"].setdefault(job, {"id": job, "state": "PENDING"}).update(fields)

    def change_jobs(self, **fields: Any) -> None:
        """Move all that are registered."""
        with self._locked() as state:
            for job in state["jobs"].values():
                job.update(fields)

    def forget_job(self, job: str) -> None:
        """The controller knows it no longer."""
        with self._locked() as state:
            del state["jobs"][job]

    @property
    def _calls(self) -> Path:
        return self.folder / "calls.jsonl"

    def _install(self, name: str) -> None:
        shim = self.bin / name
        words = [sys.executable, "-I", "-S", str(PROGRAM), str(self.folder), name]
        shim.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        shim.chmod(0o755)

    @contextmanager
    def _locked(self) -> Iterator[dict[str, Any]]:
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = json.loads((self.folder / "state.json").read_text())
            yield state
            self._write(state)

    def _write(self, state: dict[str, Any]) -> None:
        (self.folder / "state.json").write_text(json.dumps(state))
