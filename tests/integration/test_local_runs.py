"""Runs on this machine that do odd things to themselves, under a real server."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gangline.client import Client, connect, submit
from gangline.domain.errors import Conflict, NotFound
from gangline.domain.spec import CheckpointPolicy, Environment, Resources, RestartPolicy, RunSpec
from gangline.rundir.home import Home

pytestmark = pytest.mark.integration
DEADLINE_S = 90.0


@pytest.fixture
def client(shared_server: Path) -> Iterator[Client]:
    with connect(Home(shared_server)) as client:
        yield client


def start(client: Client, folder: Path, script: str, **spec: Any) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(script)
    given = {"entry": "train.py", "resources": Resources(procs_per_node=2), **spec}
    return submit(RunSpec(**given), root=folder, client=client)["id"]


def warnings_of(client: Client, run: str) -> list[str]:
    return [event["message"] for event in client.events(run) if event["kind"] == "warning"]


def test_a_script_that_rewrites_itself_runs_as_it_was_submitted_at_each_attempt(client, tmp_path):
    script = (
        "import os, sys, pathlib\n"
        "print('as submitted', flush=True)\n"
        "pathlib.Path('made-by-the-run').write_text('x')\n"
        "if os.environ['GANGLINE_ATTEMPT'] != '2':\n"
        "    pathlib.Path('train.py').write_text('print(\"rewritten\")\\n')\n"
        "    sys.exit(3)\n"
        "assert pathlib.Path('made-by-the-run').exists()\n"
    )
    policy = RestartPolicy(max_restarts=2, backoff_s=0.01, max_backoff_s=0.01)
    run = start(client, tmp_path / "project", script, restarts=policy, resources=Resources(procs_per_node=1))
    assert client.wait(run, timeout_s=DEADLINE_S)["phase"] == "succeeded"
    detail = client.run(run)
    assert [attempt["outcome"] for attempt in detail["attempts"]] == ["failed", "failed", "succeeded"]
    logs = [b"".join(client.raw_log(run, 0, attempt=attempt)) for attempt in range(3)]
    assert logs == [b"as submitted\n"] * 3
    told = [text for text in warnings_of(client, run) if "are restored" in text]
    assert len(told) == 2
    assert all("train.py" in text for text in told)
    assert Path(detail["run_dir"], "changed", "1", "train.py").read_text() == 'print("rewritten")\n'


REMOVE = """
import os, shutil, sys
if os.environ["RANK"] == "0":
    {what}
sys.exit({code})
"""


@pytest.mark.parametrize("code", [0, 3])
@pytest.mark.parametrize(
    "what",
    [
        "shutil.rmtree(os.environ['GANGLINE_RUN_DIR'])",
        "shutil.rmtree(os.environ['GANGLINE_RUN_DIR'] + '/attempts')",
        "os.rename(os.environ['GANGLINE_RUN_DIR'], os.environ['GANGLINE_RUN_DIR'] + '.moved')",
    ],
)
def test_a_run_that_removes_its_own_folder_has_failed_and_says_so(client, tmp_path, what, code):
    spec = {"restarts": RestartPolicy(max_restarts=3), "resources": Resources(procs_per_node=1)}
    run = start(client, tmp_path / "project", REMOVE.format(what=what, code=code), **spec)
    over = client.wait(run, timeout_s=DEADLINE_S)
    assert (over["phase"], over["reason"], over["exit_code"]) == ("failed", "storage", 74)
    assert "was removed while the ranks ran" in over["message"]
    assert len(client.run(run)["attempts"]) == 1


def test_a_resume_without_the_folder_says_what_is_missing(client, tmp_path):
    script = REMOVE.format(what="shutil.rmtree(os.environ['GANGLINE_RUN_DIR'])", code=0)
    run = start(client, tmp_path / "project", script)
    client.wait(run, timeout_s=DEADLINE_S)
    client.resume(run, patience_s=DEADLINE_S)
    over = client.wait(run, timeout_s=DEADLINE_S)
    assert (over["phase"], over["reason"]) == ("failed", "storage")
    assert "was removed" in over["message"]


def test_an_interpreter_that_vanishes_while_the_run_waits_is_named(client, tmp_path):
    venv = tmp_path / "venv" / "bin"
    venv.mkdir(parents=True)
    (venv / "python").symlink_to(sys.executable)
    whole = Resources(procs_per_node=1, cpus_per_rank=client.pools()[0]["cpus"])
    blocker = start(client, tmp_path / "a", "import time; time.sleep(600)", resources=whole)
    environment = Environment(python=str(venv / "python"))
    run = start(client, tmp_path / "b", "print('never')", resources=whole, environment=environment)
    assert client.run(run)["phase"] == "queued"
    shutil.rmtree(tmp_path / "venv")
    client.stop(blocker, grace_s=0)
    over = client.wait(run, timeout_s=DEADLINE_S)
    assert (over["phase"], over["reason"]) == ("failed", "environment_mismatch")
    assert f"the interpreter {venv}/python is not there any more" in over["message"]


def test_a_run_that_is_over_is_removed_and_its_kept_checkpoint_starts_another(client, shared_server, tmp_path):
    script = (
        "import gangline\n"
        "found = gangline.latest_checkpoint()\n"
        "print('from', found.step if found else None)\n"
        "with gangline.checkpoint(7) as folder:\n"
        "    (folder / 'model').write_bytes(b'x' * 5000)\n"
    )
    one = {"resources": Resources(procs_per_node=1)}
    run = start(client, tmp_path / "project", script, **one)
    with pytest.raises(Conflict, match="stop"):
        client.remove(run)
    assert client.wait(run, timeout_s=DEADLINE_S)["phase"] == "succeeded"
    removed = client.remove(run, keep_checkpoints=True, patience_s=DEADLINE_S)
    assert removed["left"] == []
    assert not Home(shared_server).run(run).path.exists()
    with pytest.raises(NotFound):
        client.run(run)
    policy = CheckpointPolicy(start_from=str(next(Path(removed["kept"]).glob("step-*"))))
    again = start(client, tmp_path / "project", script, checkpoint=policy, **one)
    assert client.wait(again, timeout_s=DEADLINE_S)["phase"] == "succeeded"
    assert b"from 7" in b"".join(client.raw_log(again, 0))
