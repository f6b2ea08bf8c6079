"""Flows that are run as people run them, each test with a datastore and a home folder of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gangline.client import Client

FLOWS = Path(__file__).parent / "flows"
PATIENCE_S = 300.0
READ = """
import sys, json
from metaflow import Task, namespace
namespace(None)
task = Task(sys.argv[1])
print(json.dumps({
    "done": task.finished, "ok": task.successful, "stdout": task.stdout,
    "data": {a.id: repr(a.data) for a in task if not a.id.startswith("_")} if task.finished else {},
    "metadata": {m.name: m.value for m in task.metadata},
}))
"""


class Flows:
    """Flows of one test, in a project of their own."""

    def __init__(self, folder: Path, home: Path, client: Client) -> None:
        self.folder, self.client = folder, client
        self.python = Path(sys.executable)
        self.project = folder / "project"
        self.project.mkdir()
        (self.project / ".ganglineignore").write_text("*.tmp\n")
        self.store = folder / "store"
        self.store.mkdir()
        (folder / "home").mkdir()
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("METAFLOW_")},
            "GANGLINE_HOME": str(home),
            "HOME": str(folder / "home"),
            "METAFLOW_DATASTORE_SYSROOT_LOCAL": str(self.store),
            "METAFLOW_USER": "alice",
            "METAFLOW_DEFAULT_METADATA": "local",
            "MARK": str(folder),
        }
        self._started: list[subprocess.Popen[str]] = []

    def start(self, name: str, *args: str, group: bool = False, **env: str) -> subprocess.Popen[str]:
        """Start `python NAME.py ARGS`; its output goes to a file."""
        if not (self.project / f"{name}.py").exists():
            shutil.copy(FLOWS / f"{name}.py", self.project)
        output = self.folder / f"output-{len(self._started)}.tmp"
        command = [str(self.python), f"{name}.py", "--no-pylint", *args]
        with output.open("w") as file:
            process = subprocess.Popen(
                command,
                cwd=self.project,
                env={**self.env, **env},
                stdout=file,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=group,
            )
        process.output = output  # type: ignore[attr-defined]
        self._started.append(process)
        return process

    def run(self, name: str, *args: str, **env: str) -> tuple[int, str]:
        """Run one to its end: exit code and output."""
        process = self.start(name, *args, **env)
        code = process.wait(PATIENCE_S)
        return code, said(process)

    def until(self, condition: Callable[[], Any], process: subprocess.Popen[str] | None = None) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while not (found := condition()):
            told = "" if process is None else said(process)
            assert time.monotonic() < deadline, f"not seen in {PATIENCE_S:.0f} s; the flow said:\n{told}"
            time.sleep(0.05)
        return found

    def task(self, flow: str, step: str, run: str | None = None) -> dict[str, Any]:
        """What Metaflow's own client knows of the one task of a step, by a process of its own."""
        import json  # noqa: PLC0415

        run = run or self.newest(flow)
        (task,) = [
            path.name for path in (self.store / ".metaflow" / flow / run / step).iterdir() if path.name.isdigit()
        ]
        code = [str(self.python), "-c", READ, f"{flow}/{run}/{step}/{task}"]
        done = subprocess.run(code, cwd=self.project, env=self.env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    def newest(self, flow: str) -> str:
        """Id of the newest run of a flow."""
        return max(path.name for path in (self.store / ".metaflow" / flow).iterdir() if path.name.isdigit())

    def runs(self, **labels: str) -> list[Any]:
        """Runs of Gangline that belong to flows of this test, oldest first."""
        where = [f"test.folder={self.folder}", *(f"metaflow.{name}={value}" for name, value in labels.items())]
        return self.client.list_runs(labels=where)[::-1]

    def ended(self, run_id: str) -> Any:
        return self.client.wait(run_id, timeout_s=PATIENCE_S)

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
        for run in self.runs():
            if run["phase"] not in {"succeeded", "failed", "stopped"}:
                self.client.stop(run["id"], grace_s=0.0)
                self.ended(run["id"])


def said(process: subprocess.Popen[str]) -> str:
    """What a flow has printed so far."""
    return str(process.output.read_text(errors="replace"))  # type: ignore[attr-defined]


def children(pid: int) -> list[int]:
    """Processes that a process has started and that live."""
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(word) for word in listed.stdout.split()]


def kill(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
