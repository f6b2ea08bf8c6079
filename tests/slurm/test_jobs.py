"""What a job of Slurm is made of, on the real cluster: agents, their ranks, existing scripts. No server is needed."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.slurm.cluster import Cluster, wait_for

from gangline.backends.slurm.backend import SlurmBackend
from gangline.backends.slurm.session import Session
from gangline.client.batchscript import adopt_batch_script
from gangline.control.launchfile import LaunchTerms, render_launch_text
from gangline.domain.gang import GangSpec, Handle, Observation
from gangline.domain.pool import SlurmPool
from gangline.domain.spec import (
    Environment,
    OnTimeLimit,
    Resources,
    RestartPolicy,
    RunSpec,
    SlurmOptions,
    SnapshotRef,
    StopPolicy,
)
from gangline.rundir.files import write_json, write_text
from gangline.rundir.home import Home
from gangline.rundir.layout import RunDir
from gangline.snapshot.objects import ObjectStore
from gangline.snapshot.pack import pack

pytestmark = [pytest.mark.integration, pytest.mark.slurm]

DIES_ONCE = """\
import os, signal, time
seen = {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID", "FROM_SETUP", "WORLD_SIZE")}
print(seen, flush=True)
if os.environ["GANGLINE_ATTEMPT"] == "0" and os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
if os.environ["GANGLINE_ATTEMPT"] == "0":
    time.sleep(300)
"""
ASKS = """\
import time, gangline
for step in range(1200):
    gangline.progress(step)
    if gangline.should_stop():
        with gangline.checkpoint(step) as folder:
            (folder / "model").write_text("x")
        break
    time.sleep(0.05)
"""
OLD = """\
#!/bin/bash
#SBATCH --job-name="nightly run"
#SBATCH --nodes=2 --ntasks-per-node=2   # on two machines
#SBATCH -o logs/%x-%j.out
#SBATCH --gpus-per-node=1
echo "batch: $SLURM_JOB_NAME, arguments $1 $2"
srun bash -c 'echo "task $SLURM_PROCID of $SLURM_NTASKS, device $CUDA_VISIBLE_DEVICES, RANK=$RANK"'
exit 7
"""


class Nobody:
    """Follows no job."""

    def observe(self, handles: Sequence[Handle]) -> dict[int, Observation]:  # noqa: ARG002
        return {}

    def cancelling(self, handle: Handle) -> None:
        pass


class Desk:
    """Submits launches as control does, and waits for their jobs to end."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.home = Home(folder / "home").create()
        options = ("-F", str(cluster.ssh_config))
        self.pool = SlurmPool(
            name="lab",
            work=f"{cluster.work}/{folder.name}",
            ssh="bastion",
            ssh_options=options,
            python="/usr/bin/python3",
        )
        self.session = Session(self.pool, self.home.path)
        self.backend = SlurmBackend(self.home, self.pool, self.session, Nobody())
        self.project = folder / "project"
        self.project.mkdir()

    def run(self, spec: RunSpec) -> tuple[str, RunDir]:
        """The state in which its job ended, and its folder on the cluster, as this machine sees it."""
        run_id = f"try-{secrets.token_hex(2)}"
        packed = pack(self.project, cache_path=None, home=self.home.path)
        store, run = ObjectStore(self.home.path), self.home.run(run_id)
        for digest, path in packed.sources.items():
            store.put_file(digest, path)
        run.path.mkdir()
        write_json(run.code_manifest, packed.manifest.to_dict())
        write_text(run.spec, "{}")
        spec = replace(spec, snapshot=SnapshotRef(digest=packed.manifest.digest))
        places = self.backend.places(run_id)
        terms = LaunchTerms(
            run_id=run_id,
            token=secrets.token_hex(16),
            objects=places.objects,
            answers=places.answers,
            default_checkpoints=f"{places.run_dir}/checkpoints",
        )
        write_text(run.launch(0).spec, render_launch_text(spec, terms), mode=0o600)
        launch = self.backend.render(gang_of(spec, run_id))
        for name, text in launch.files.items():
            write_text(run.path / name, text)
        handle = self.backend.submit(launch, key="k")
        far = RunDir(self.cluster.work_here / self.folder.name / "runs" / run_id)
        wait_for("the end of the job", (far.launch(0).path / "job.exit").exists, lambda: log_of(far))
        wait_for("Slurm to see it", lambda: self.cluster.job_state(handle.data["job"]) not in {"RUNNING", "COMPLETING"})
        return self.cluster.job_state(handle.data["job"]), far


def gang_of(spec: RunSpec, run_id: str) -> GangSpec:
    resources = spec.resources
    return GangSpec(
        run_id=run_id,
        name=run_id,
        launch=0,
        first_attempt=0,
        run_dir="",
        nodes=resources.nodes,
        min_nodes=resources.min_nodes,
        procs_per_node=resources.procs_per_node or 1,
        gpus_per_node=resources.gpus_per_node or 0,
        time_limit_s=spec.stop.time_limit_s,
        slurm=spec.slurm,
    )


def spec_of(**fields: Any) -> RunSpec:
    resources = fields.pop("resources", Resources(procs_per_node=1))
    return RunSpec(
        entry="train.py", name="try", resources=resources, environment=Environment(python="python3"), **fields
    )


def log_of(far: RunDir) -> str:
    return "".join(path.read_text() for path in sorted(far.launch(0).path.glob("*.log")))


def result_of(far: RunDir, attempt: int) -> dict[str, Any]:
    return dict(json.loads(far.attempt(attempt).result.read_text()))


@pytest.fixture
def desk(cluster: Cluster, tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(cluster, tmp_path)
    yield desk
    desk.session.close()


def test_an_elastic_gang_restarts_inside_its_job(desk: Desk) -> None:
    """Slurm has four nodes for five; a rank is killed, and the next attempt is one of the same job."""
    (desk.project / "train.py").write_text(DIES_ONCE)
    resources = Resources(nodes=5, min_nodes=2, procs_per_node=1, gpus_per_node=2)
    setup = SlurmOptions(setup=("export FROM_SETUP=yes", "true"))
    state, far = desk.run(spec_of(resources=resources, restarts=RestartPolicy(backoff_s=0.0), slurm=setup))
    assert state == "COMPLETED", log_of(far)
    assert (result_of(far, 0)["reason"], result_of(far, 0)["next"]) == ("killed", "restart")
    assert result_of(far, 1)["outcome"] == "succeeded"
    members = json.loads(far.attempt(1).gang.read_text())["members"]
    assert [(one["host"], one["devices"]) for one in members] == [(node, ["0", "1"]) for node in desk.cluster.nodes]
    said = far.attempt(1).log(3).read_text()
    assert "'CUDA_VISIBLE_DEVICES': '0,1', 'SLURM_JOB_ID': None, 'FROM_SETUP': 'yes', 'WORLD_SIZE': '4'" in said


def test_ranks_are_told_before_the_jobs_time_is_over(desk: Desk) -> None:
    """S8: the warning reaches the rank, which saves; what follows goes on in another job."""
    (desk.project / "train.py").write_text(ASKS)
    stop = StopPolicy(time_limit_s=60.0, time_limit_notice_s=52.0, on_time_limit=OnTimeLimit.CONTINUE)
    state, far = desk.run(spec_of(stop=stop))
    ended = result_of(far, 0)
    assert (ended["reason"], ended["next"], ended["budget"]) == ("time_limit", "relaunch", "continuation"), ended
    assert "goes on from step" in ended["restart_message"]
    assert (far.launch(0).path / "job.exit").read_text().startswith("75 ")
    assert state == "FAILED", "what waits for its success does not start"


def test_an_existing_script_runs_as_it_is(desk: Desk) -> None:
    (desk.project / "old.sbatch").write_text(OLD)
    spec = replace(spec_of(), entry="", args=("a", "b c"), name=None, slurm=SlurmOptions(script="old.sbatch"))
    state, far = desk.run(adopt_batch_script(spec, cwd=desk.project, root=desk.project))
    log = far.attempt(0).log(0).read_text()
    assert "batch: nightly run, arguments a b c\n" in log
    assert sorted(line for line in log.splitlines() if line.startswith("task")) == [
        f"task {task} of 4, device 0, RANK=" for task in range(4)
    ]
    ended = result_of(far, 0)
    assert (ended["reason"], ended["exit_code"], state) == ("user_error", 7, "FAILED")
    [link] = (far.code / "logs").iterdir()
    assert link.name.startswith("nightly run-")
    assert link.readlink().name == "rank-00000.log"


def test_a_set_up_line_that_fails_is_named(desk: Desk) -> None:
    (desk.project / "train.py").write_text("print('never')")
    state, far = desk.run(spec_of(slurm=SlurmOptions(setup=("module load no/such",))))
    assert state == "FAILED"
    assert "the set-up line `module load no/such` failed" in (far.launch(0).path / "job.log").read_text()
    assert (far.launch(0).path / "job.exit").read_text().startswith("67 ")
