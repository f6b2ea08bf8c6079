"""A pod of Argo Workflows whose gang runs on Slurm, behind the bastion."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.metaflow.containers import Argo, Cloud, Deployer, Machines, free_port
from tests.slurm.cluster import inside
from tests.slurm.files import HEAD, address

if TYPE_CHECKING:
    from tests.slurm.cluster import Cluster
    from tests.slurm.laptop import Laptop

pytestmark = [pytest.mark.integration, pytest.mark.metaflow, pytest.mark.slurm, pytest.mark.timeout(900)]
PORT = 5055


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
    there = f"http://{address(HEAD)}:{PORT}"
    keys = cluster.work_here / "keys"
    keys.write_text("[default]\naws_access_key_id = test\naws_secret_access_key = test\n")
    keys.chmod(0o644)
    env = {"METAFLOW_S3_ENDPOINT_URL": there, "AWS_ENDPOINT_URL": there}
    options = {
        "python": str(cluster.ranks_python),
        "env": {**env, "AWS_SHARED_CREDENTIALS_FILE": f"{cluster.work}/keys"},
    }
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
