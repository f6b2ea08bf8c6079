"""The cluster itself: it is what it claims to be, and nothing of it stays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from tests.conftest import assert_nothing_left, processes_of
from tests.slurm.cluster import ROOT, Cluster, wait_for
from tests.slurm.files import Shape

pytestmark = pytest.mark.slurm

HOLDER = """
import sys, time
from pathlib import Path
from tests.slurm.cluster import Cluster, Shape
cluster = Cluster.start(Path(sys.argv[1]), Shape(nodes=1))
print("up", flush=True)
time.sleep(600)
"""


def test_users_see_a_cluster_and_not_this_machine(cluster: Cluster):
    seen = cluster.ssh("srun -N4 --label sh -c 'hostname; id -un'").stdout.splitlines()
    assert sorted(seen) == sorted(
        line for rank, node in enumerate(cluster.nodes) for line in (f"{rank}: {node}", f"{rank}: alice")
    )
    assert cluster.ssh(f"ls {cluster.folder}", check=False).returncode != 0


def test_a_job_has_devices_and_this_environment(cluster: Cluster):
    script = "import os, torch; print(os.environ['CUDA_VISIBLE_DEVICES'], torch.__version__.split('.')[0])"
    told = cluster.as_user(["srun", "--gres=gpu:3", str(cluster.ranks_python), "-c", script]).stdout
    assert told.split() == ["0,1,2", "2"]


def test_what_is_broken_is_mended(cluster: Cluster):
    cluster.stop_bastion()
    cluster.kill_node("node04")
    cluster.kill_slurmd("node02")
    cluster.drain("node03")
    cluster.stop_ctld()
    assert cluster.ssh("true", check=False).returncode == 255
    cluster.heal()
    assert sorted(cluster.ssh("srun -N4 hostname").stdout.split()) == cluster.nodes


def machines_of(folder: Path) -> list[psutil.Process]:
    inits = [psutil.Process(int(file.read_text())) for file in folder.glob("run/*.pid")]
    found = [process for init in inits for process in [init, *init.children(recursive=True)]]
    assert len(found) > 6, "two machines with at least munged and a daemon of Slurm"
    return found


def test_nothing_is_left_of_one_whose_user_was_killed(tmp_path: Path):
    folder = tmp_path / "other"
    words = [sys.executable, "-c", HOLDER, str(folder)]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "up\n"
            machines = machines_of(folder)
            joined = Cluster.join(folder)
        finally:
            holder.kill()
    assert joined is not None
    assert joined.ssh("hostname").stdout == "head\n"
    joined.leave()
    assert Cluster.join(folder) is None
    assert not [process for process in machines if process.is_running()]
    assert_nothing_left(folder)


def test_nothing_is_left_when_the_keeper_is_killed(tmp_path: Path):
    other = Cluster.start(tmp_path / "other", Shape(nodes=1))
    (keeper,) = [process for process in processes_of(other.folder) if "tests.slurm.keeper" in process.cmdline()]
    machines = machines_of(other.folder)
    keeper.kill()
    other.leave()
    wait_for("all machines to be gone", lambda: not any(process.is_running() for process in machines))
