"""Kill -9 of the server at random moments of a submit: the command succeeds all the same, and makes exactly one run.

GANGLINE_FAULT_ROUNDS says how many submits (default 5), GANGLINE_FAULT_SEED repeats one series.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from gangline.client import connect, submit
from gangline.domain.spec import RunSpec
from gangline.rundir.home import Home
from gangline.rundir.serving import server_pid

ROUNDS = int(os.environ.get("GANGLINE_FAULT_ROUNDS", "5"))
SEED = int(os.environ.get("GANGLINE_FAULT_SEED", random.SystemRandom().randrange(2**31)))

pytestmark = [pytest.mark.faults, pytest.mark.integration]


class Killer(threading.Thread):
    """Kills whoever serves the state folder, at the moments given, counted from the one before."""

    def __init__(self, home: Home, delays_s: list[float]) -> None:
        super().__init__(daemon=True)
        self._home = home
        self._delays_s = delays_s
        self._done = threading.Event()
        self.killed = 0

    def run(self) -> None:
        for delay_s in self._delays_s:
            if self._done.wait(delay_s):
                return
            pid = server_pid(self._home)
            if pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    self.killed += 1

    def end(self) -> None:
        self._done.set()
        self.join()


def test_a_submit_survives_its_server_and_counts_once(home: Path, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    project = tmp_path / "project"
    project.mkdir()
    killed = 0
    for number in range(ROUNDS):
        (project / "train.py").write_text(f"print({number})\n")  # something to upload each time
        delays_s = [chance.uniform(0.0, 0.25)] + [chance.uniform(0.2, 1.5) for _ in range(chance.randrange(2))]
        with connect(Home(home)) as client:
            killer = Killer(Home(home), delays_s)
            killer.start()
            run = submit(RunSpec(entry="train.py", name=f"round-{number}"), root=project, client=client)
            killer.end()
            killed += killer.killed
            where = f"seed {SEED}, round {number}, delays {delays_s}"
            assert [one["id"] for one in client.list_runs(name=f"round-{number}", limit=None)] == [run["id"]], where
    with connect(Home(home)) as client:
        assert len(list((home / "runs").iterdir())) == ROUNDS, f"seed {SEED}: folders are left over"
        for one in client.list_runs(limit=None):
            assert client.wait(one["id"], timeout_s=120.0)["phase"] == "succeeded", f"seed {SEED}"
            assert len(client.run(one["id"])["attempts"]) == 1, f"seed {SEED}"
    print(f"seed {SEED}: {killed} servers killed in {ROUNDS} submits")
