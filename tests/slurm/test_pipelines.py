"""A pod of Argo Workflows whose gang runs on Slurm, behind the bastion."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.metaflow.containers import Argo, Cloud, Deployer, Machines, free_port
from tests.metaflow.flowruns import FLOWS, READ
from tests.slurm.cluster import inside
from tests.slurm.files import HEAD, address

if TYPE_CHECKING:
    from tests.slurm.cluster import Cluster
    from tests.slurm.laptop import Laptop

pytestmark = [pytest.mark.integration, pytest.mark.metaflow, pytest.mark.slurm, pytest.mark.timeout(900)]
PORT = 5055
SOURCES = Path(__file__).parents[2] / "src"


@pytest.fixture
def cloud(cluster: Cluster, tmp_path: Path) -> Iterator[Cloud]:
    """S3 on the cluster's own network; here it is reached through the bastion."""
    here = free_port()
    forward = ["ssh", "-F", str(cluster.ssh_config), "-N", "-L", f"127.0.0.1:{here}:127.0.0.1:{PORT}", "bastion"]
    tunnel = subprocess.Popen(forward, stdin=subprocess.DEVNULL)
    head = int((cluster.folder / "run" / f"{HEAD}.pid").read_text())
    moto = inside(head, sys.executable, "-m", "moto.server", "-H", "0.0.0.0", "-p", str(PORT))
    made = Cloud(tmp_path, moto, f"http://127.0.0.1:{here}")
    yield made
    made.close()
    cluster.on(HEAD, ["pkill", "-KILL", "-f", f"moto.server -H 0.0.0.0 -p {PORT}"], check=False)
    tunnel.kill()
    tunnel.wait()


def test_a_pod_runs_its_gang_on_slurm_and_tells_argo_what_comes_next(
    laptop: Laptop, cluster: Cluster, cloud: Cloud, tmp_path: Path
) -> None:
    """The image has Gangline; the ranks find it, and Metaflow, in the code package."""
    laptop.gangline("pools")  # a server is there
    served = json.loads((laptop.home / "server.json").read_text())
    team = {
        "GANGLINE_SERVER": f"http://127.0.0.1:{served['port']}",
        "GANGLINE_TOKEN": (laptop.home / "token").read_text().strip(),
    }
    options = options_of(cluster)
    deploy = Deployer(tmp_path, cloud.env)
    printed = deploy("far", "argo-workflows", "create", "--only-json", put=("OPTIONS = {}", f"OPTIONS = {options}"))

    machines = Machines(tmp_path / "machines", Path(sys.executable).parent, {**cloud.env, **team})
    argo = Argo(json.loads(printed), machines)
    try:
        start = argo.run("start")
        for rank in range(4):
            assert f"[rank {rank}] rank {rank} of 4 on lab" in start.output
        assert json.loads(start.out("splits")) == [0, 1]  # told by the pod, not by rank 0 on its node
        above = f"argo-three-x7k2p/start/{start.out('task_id')}"
        look = argo.run("look", input_paths=above, split_index="1")
        assert "looks at dogs of 4" in look.output
        with laptop.client() as client:
            (run,) = client.list_runs(labels=["metaflow.flow=FarFlow"])
        assert (run["phase"], run["pool"], run["labels"]["metaflow.workflow"]) == ("succeeded", "lab", "three-x7k2p")
    finally:
        machines.close()


class FlowOnLaptop:
    """Whoever runs flows there, in a project and with a folder of Metaflow of their own."""

    def __init__(self, laptop: Laptop, cloud: Cloud, options: dict[str, Any]) -> None:
        self.project = laptop.folder / "flows"
        self.project.mkdir()
        text = (FLOWS / "away.py").read_text()
        (self.project / "away.py").write_text(text.replace("OPTIONS = {}", f"OPTIONS = {options}"))
        mine = {name: value for name, value in os.environ.items() if not name.startswith(("METAFLOW_", "AWS_"))}
        home = {"HOME": str(laptop.folder), "GANGLINE_HOME": str(laptop.home)}
        self.env = {**mine, **home, **cloud.env, "METAFLOW_USER": "alice", "METAFLOW_DEFAULT_METADATA": "local"}

    def run(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "away.py", "--no-pylint", *words]
        env = {**self.env, **env}
        return subprocess.run(command, cwd=self.project, env=env, capture_output=True, text=True, check=False)

    def task(self, step: str, number: int = 0) -> dict[str, Any]:
        """What Metaflow's own client knows here of a task of the newest run."""
        flow = self.project / ".metaflow" / "AwayFlow"
        run = max((path for path in flow.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
        tasks = sorted((path.name for path in (run / step).iterdir() if path.name.isdigit()), key=int)
        code = [sys.executable, "-c", READ, f"AwayFlow/{run.name}/{step}/{tasks[number]}"]
        env = {**self.env, "METAFLOW_DEFAULT_DATASTORE": "s3"}
        done = subprocess.run(code, cwd=self.project, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))


def options_of(cluster: Cluster) -> dict[str, Any]:
    """What @gang says for ranks of the cluster: their interpreter, and how they reach the store."""
    there = f"http://{address(HEAD)}:{PORT}"
    keys = cluster.work_here / "keys"
    keys.write_text("[default]\naws_access_key_id = test\naws_secret_access_key = test\n")
    keys.chmod(0o644)
    env = {"METAFLOW_S3_ENDPOINT_URL": there, "AWS_ENDPOINT_URL": there}
    return {
        "python": str(cluster.ranks_python),
        "env": {**env, "AWS_SHARED_CREDENTIALS_FILE": f"{cluster.work}/keys"},
    }


def test_a_flow_on_a_laptop_has_its_gangs_on_slurm(laptop: Laptop, cluster: Cluster, cloud: Cloud) -> None:
    """A foreach of two gangs, artifacts to the join; a failure names its rank; a folder of the laptop is refused."""
    options = options_of(cluster)
    skip = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(SOURCES, cluster.work_here / "lib", ignore=skip, dirs_exist_ok=True)
    options["env"]["PYTHONPATH"] = f"{cluster.work}/lib"  # as if Gangline were installed there
    flows = FlowOnLaptop(laptop, cloud, options)
    refused = flows.run("run")
    assert refused.returncode == 1
    said = " ".join((refused.stdout + refused.stderr).split())
    assert "which the machines of `lab` do not see. Use `--datastore s3`" in said
    assert "Workflow starting" not in said
    unseen = flows.run("run", METAFLOW_DATASTORE_SYSROOT_LOCAL=str(laptop.folder))
    assert unseen.returncode == 1
    assert "does not share that folder with the machine of the flow" in " ".join(unseen.stdout.split()), unseen.stdout
    shutil.rmtree(laptop.folder / ".metaflow")

    done = flows.run("--datastore", "s3", "run")
    assert done.returncode == 0, done.stdout + done.stderr
    for shard in ("cats", "dogs"):
        for rank in range(2):
            assert f"[rank {rank}] rank {rank} of 2 on node" in done.stdout
            assert f"with {shard}" in done.stdout
    joined = flows.task("join")
    assert joined["data"]["seen"] == "[('cats', 0, 2), ('dogs', 0, 2)]"
    look = flows.task("look", 1)
    assert (look["ok"], look["data"]["told"]) == (True, "('dogs', 0, 2)")
    assert look["metadata"]["gangline-pool"] == "lab"

    failed = flows.run("--datastore", "s3", "run", "--tag", "fails", FAILS="1")
    assert failed.returncode == 1
    assert "Rank 1 on node 1 (node" in failed.stdout
    assert "ValueError: nothing to see" in failed.stdout
