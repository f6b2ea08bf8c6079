"""The local backend with real agents and ranks."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from gangline.backends.local.backend import LocalBackend
from gangline.control.launchfile import LaunchTerms, render_launch_text
from gangline.domain.gang import Handle, Liveness
from gangline.domain.spec import StartMode
from gangline.rundir.home import Home
from gangline.rundir.layout import RunDir
from gangline.testing import make_gang, make_spec

pytestmark = pytest.mark.integration

DEADLINE_S = 30.0
SCRIPT = """
import os, time
open(f"{os.environ['GANGLINE_RUN_DIR']}/up-{os.environ['RANK']}", "w").close()
end = f"{os.environ['GANGLINE_RUN_DIR']}/end"
while not os.path.exists(end):
    time.sleep(0.02)
"""


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.02)


def of_folder(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            texts = [*process.cmdline(), *process.environ().values()]
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if process.pid != os.getpid() and any(str(folder) in text for text in texts):
            found.append(process)
    return found


class Machine:
    """One run of two nodes with two ranks each, and the backend that holds it."""

    def __init__(self, folder: Path, start_mode: StartMode) -> None:
        self.start_mode = start_mode
        self.folder = folder
        self.home = Home(folder / "home").create()
        self.run: RunDir = self.home.run("train-2abc")
        self.run.code.mkdir(parents=True)
        (self.run.code / "train.py").write_text(SCRIPT)
        self.gang = make_gang(nodes=2, procs_per_node=2, run_dir=str(self.run.path))
        self.write_launch()
        self.backend = LocalBackend(self.home, patience_s=3.0)

    def write_launch(self) -> None:
        spec = make_spec(
            name="train",
            nodes=2,
            procs_per_node=2,
            python=sys.executable,
            start=self.start_mode,
            grace_s=2.0,
            failure_grace_s=1.0,
        )
        terms = LaunchTerms(
            run_id="train-2abc", devices=[[], []], token="0123abcd", default_checkpoints=str(self.run.checkpoints)
        )
        path = self.run.launch(0).spec
        path.parent.mkdir(parents=True)
        path.write_text(render_launch_text(spec, terms))

    def start(self) -> Handle:
        return self.backend.submit(self.backend.render(self.gang), key="k")

    def agents(self) -> list[int]:
        """The agents themselves; a handle has their guardians."""
        return [int(self.run.launch(0).lock(node).read_text()) for node in (0, 1)]

    def wait_until_up(self) -> None:
        wait_for(lambda: len(list(self.run.path.glob("up-*"))) == 4)

    def liveness(self, handle: Handle) -> Liveness:
        return self.backend.observe([handle])[0].liveness

    def wait_until_gone(self, handle: Handle) -> None:
        wait_for(lambda: self.liveness(handle) is Liveness.GONE)


def guardians(handle: Handle) -> list[int]:
    return [agent["pid"] for agent in handle.data["agents"]]


@pytest.fixture(params=[StartMode.EXEC, StartMode.WARM])
def machine(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Machine]:
    machine = Machine(tmp_path, request.param)
    yield machine
    left = of_folder(tmp_path)
    for process in left:
        process.kill()
    psutil.wait_procs(left, timeout=DEADLINE_S)
    machine.backend.observe([])
    assert left == [], "the test left processes behind"


def test_a_gang_comes_up_and_ends_by_itself(machine: Machine) -> None:
    handle = machine.start()
    machine.wait_until_up()
    assert machine.liveness(handle) is Liveness.ALIVE
    (machine.run.path / "end").touch()
    machine.wait_until_gone(handle)
    assert json.loads(machine.run.attempt(0).result.read_text())["outcome"] == "succeeded"


def test_a_repeated_submit_starts_nothing(machine: Machine) -> None:
    handle = machine.start()
    machine.wait_until_up()
    machine.backend = LocalBackend(machine.home, patience_s=3.0)
    assert machine.start() == handle
    assert machine.liveness(handle) is Liveness.ALIVE
    (machine.run.path / "end").touch()
    machine.wait_until_gone(handle)
    assert [attempt.number for attempt in machine.run.attempts()] == [0]


def test_cancel_leaves_nothing(machine: Machine) -> None:
    handle = machine.start()
    machine.wait_until_up()
    machine.backend.cancel(handle)
    machine.wait_until_gone(handle)
    assert of_folder(machine.folder) == []


def test_cancel_of_agents_that_are_stopped_leaves_nothing(machine: Machine) -> None:
    handle = machine.start()
    machine.wait_until_up()
    for pid in [*guardians(handle), *machine.agents()]:
        os.kill(pid, signal.SIGSTOP)
    machine.backend = LocalBackend(machine.home, patience_s=10 * DEADLINE_S)  # nobody waits for who cannot hear
    machine.backend.cancel(handle)
    machine.wait_until_gone(handle)
    wait_for(lambda: of_folder(machine.folder) == [])


@pytest.mark.parametrize("killed", ["agents", "guardians", "both"])
def test_killed_agents_take_their_ranks_along(machine: Machine, killed: str) -> None:
    handle = machine.start()
    machine.wait_until_up()
    pids = {"agents": machine.agents(), "guardians": guardians(handle), "both": [*guardians(handle), *machine.agents()]}
    for pid in pids[killed]:
        os.kill(pid, signal.SIGKILL)
    machine.wait_until_gone(handle)
    wait_for(lambda: of_folder(machine.folder) == [])
