"""The database goes away under real runs: the next server finds them in their folders, and trains nothing twice."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from gangline.client import Client, connect, submit
from gangline.domain.spec import RunSpec
from gangline.rundir.home import Home

pytestmark = pytest.mark.integration
DEADLINE_S = 60.0
SCRIPT = """
import time
import gangline

for step in range(1, 4):
    gangline.log({"loss": 1.0 / step}, step=step)
    gangline.progress(step, 3)
with gangline.checkpoint(3) as folder:
    (folder / "model").write_text("3")
print("saved", flush=True)
while not gangline.should_stop() and HOLD:
    time.sleep(0.02)
"""


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {DEADLINE_S} s"
        time.sleep(0.02)


def start(client: Client, folder: Path, *, hold: bool) -> str:
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT.replace("HOLD", str(hold)))
    return submit(RunSpec(entry="train.py"), root=folder, client=client)["id"]


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        wait_until(lambda: os.kill(pid, 0) or Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z", "it dies")


@pytest.mark.parametrize("how", ["deleted", "damaged"])
def test_a_new_server_adopts_what_the_database_has_lost(home, tmp_path, how):
    state = Home(home)
    with connect() as client:
        over, live = start(client, tmp_path / "a", hold=False), start(client, tmp_path / "b", hold=True)
        assert client.wait(over, timeout_s=DEADLINE_S)["phase"] == "succeeded"
        wait_until(lambda: client.checkpoints(live), "the live run saves")
        before, pids = client.run(over), [rank["pid"] for rank in client.run(live)["attempts"][0]["ranks"]]
        kill(client.health()["pid"])
        for path in home.glob("gangline.db-*"):
            path.unlink()
        state.database.unlink() if how == "deleted" else state.database.write_bytes(b"\0\1" * 5000)
        warnings = client.health()["warnings"]
        assert any("2 runs were adopted from their folders" in text for text in warnings)
        assert any("put aside" in text for text in warnings) == (how == "damaged")
        assert bool(list(home.glob("gangline.db.damaged-*"))) == (how == "damaged")
        wait_until(lambda: client.run(over)["metrics"], "what is over is read again")
        after = client.run(over)
        same = ("phase", "exit_code", "attempts", "checkpoints", "metrics", "step", "created", "user", "spec", "code")
        assert {key: after[key] for key in same} == {key: before[key] for key in same}
        wait_until(lambda: client.checkpoints(live), "what lives is read again")
        found = client.run(live)
        assert (found["phase"], [rank["pid"] for rank in found["attempts"][0]["ranks"]]) == ("running", pids)
        client.stop(live)
        assert client.wait(live, timeout_s=DEADLINE_S)["phase"] == "stopped"
        assert client.run(live)["attempts"][0]["outcome"] == "stopped"
        assert len(client.run(live)["attempts"]) == 1
