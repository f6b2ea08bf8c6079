"""A real Slurm behind a bastion (that of the tests; needs root): submission, first all-reduce, what is seen when."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import ROOT, Place, Row, in_turns, new_place, row_of, wait_until

sys.path.insert(0, str(ROOT))

POLL_S = 1.0
TREE_FILES, TREE_FILE_BYTES = 1000, 1_000_000
PEER = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --cpus-per-task=4 --output=/dev/null --job-name=peer
date +%s.%N > {out}/began
exec srun --export=ALL {torchrun} --nnodes=2 --nproc-per-node=4 --rdzv-id=$SLURM_JOB_ID --rdzv-backend=c10d \\
  --rdzv-endpoint=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1):29511 {script} {out}
"""


@dataclass(slots=True)
class Lab:
    """A place with the pool `lab`, and the cluster behind it."""

    place: Place
    cluster: Any

    def out(self) -> tuple[Path, str]:
        """A new folder that ranks report into: here, and as the cluster's machines see it."""
        name = f"out-{time.monotonic_ns()}"
        here = self.cluster.work_here / name
        here.mkdir()
        here.chmod(0o777)
        return here, f"{self.cluster.work}/{name}"

    def submit(self, project: Path, *words: str) -> str:
        done = self.place.gangline("submit", "--pool", "lab", "--json", *words, cwd=project)
        return str(json.loads(done.stdout)["id"])

    def knows(self, name: str) -> bool:
        """Whether Slurm has a job of this name."""
        return name in self.cluster.on("head", ["squeue", "-h", "-t", "all", "-o", "%j"]).stdout

    def sbatch(self, script: str) -> None:
        """Type `sbatch` over the connection that the pool holds."""
        (path,) = (self.place.folder / "home" / "ssh").iterdir()
        words = ["ssh", "-F", str(self.cluster.ssh_config), "-o", f"ControlPath={path}", "bastion", "sbatch"]
        subprocess.run(words, input=script, text=True, check=True, capture_output=True)


def measure() -> list[Row]:
    with new_lab() as lab:
        return [submission(lab), first_allreduce(lab), seen_end(lab), large_tree(lab)]


@contextmanager
def new_lab() -> Iterator[Lab]:
    from tests.slurm.cluster import Cluster

    with new_place() as place:
        cluster = Cluster.start(place.folder / "cluster")
        try:
            pool = {
                "backend": "slurm",
                "ssh": "bastion",
                "ssh_options": ["-F", str(cluster.ssh_config)],
                "work": f"{cluster.work}/bench",
                "ranks_python": str(cluster.ranks_python),
                "poll_s": POLL_S,
            }
            (Path(place.env["GANGLINE_HOME"]) / "pools.yaml").write_text(json.dumps({"pools": {"lab": pool}}))
            place.gangline("pools", "doctor", "lab", check=False)
            yield Lab(place, cluster)
        finally:
            place.gangline("server", "stop", check=False)
            cluster.leave()


def submission(lab: Lab) -> Row:
    """From the command to the job in Slurm's queue, next to `sbatch` typed over the same connection."""
    project = lab.place.project("plain.py")

    def ours() -> float:
        out, there = lab.out()
        began = time.monotonic()
        run = lab.submit(project, "plain.py", there)
        wait_until(lambda: lab.knows(run), what="the job")
        took_s = time.monotonic() - began
        lab.place.gangline("wait", run)
        shutil.rmtree(out)
        return took_s

    def peer() -> float:
        began = time.monotonic()
        lab.sbatch("#!/bin/bash\n#SBATCH --output=/dev/null\ntrue\n")
        return time.monotonic() - began

    mine, theirs = in_turns(ours, peer, times=5)
    excess_s = statistics.median(mine) - statistics.median(theirs)
    return Row(
        what="submit over a warm connection to the job in Slurm's queue",
        unit="s",
        ours=statistics.median(mine),
        peer=statistics.median(theirs),
        peer_is="sbatch typed over the same ssh connection",
        goal="< 0.7 s beyond",
        met=excess_s < 0.7,
        samples=len(mine),
        spread=(min(mine), max(mine)),
        note=f"{excess_s:.2f} s beyond",
    )


def first_allreduce(lab: Lab) -> Row:
    """From the start of the job's script to the first all-reduce done on all 8 ranks."""
    project = lab.place.project("allreduce.py")
    script, seen = lab.out()
    shutil.copy(project / "allreduce.py", script / "allreduce.py")
    torchrun = Path(lab.cluster.ranks_python).with_name("torchrun")

    def ours() -> float:
        out, there = lab.out()
        run = lab.submit(project, "--nodes", "2", "--procs-per-node", "4", "allreduce.py", there)
        last_s = last_time(out)
        began_s = float(
            (lab.cluster.work_here / "bench" / "runs" / run / "launches" / "000" / "job.id").stat().st_mtime
        )
        lab.place.gangline("wait", run)
        return last_s - began_s

    def peer() -> float:
        out, there = lab.out()
        lab.sbatch(PEER.format(out=there, torchrun=torchrun, script=f"{seen}/allreduce.py"))
        last_s = last_time(out)
        wait_until(lambda: not lab.cluster.on("head", ["squeue", "-h"]).stdout.strip(), what="the end of the job")
        return last_s - float((out / "began").read_text())

    mine, theirs = in_turns(ours, peer, times=5)
    return row_of(
        mine,
        theirs,
        limit=0.5,
        what="start of the Slurm job to the first all-reduce done, 2 nodes x 4 ranks",
        unit="s",
        peer_is="srun torchrun in a batch script",
        goal="<= 0.5",
    )


def seen_end(lab: Lab) -> Row:
    """From `scancel` typed on the cluster to the end in `show`."""
    values = []
    project = lab.place.project("hold.py")
    for _ in range(5):
        out, there = lab.out()
        run = lab.submit(project, "hold.py", there)
        wait_until(lambda: list(out.glob("rank-*")), what="the rank", pause_s=0.05)  # noqa: B023 - of this turn
        lab.cluster.as_user(["scancel", "--name", f"{run}.0"])
        began = time.monotonic()
        lab.place.gangline("wait", run, check=False)
        values.append(time.monotonic() - began)
    return Row(
        what="scancel by hand to the end in show, queue asked every second",
        unit="s",
        ours=statistics.median(values),
        goal=f"< {POLL_S + 1:g}",
        met=statistics.median(values) < POLL_S + 1,
        samples=len(values),
        spread=(min(values), max(values)),
    )


def large_tree(lab: Lab) -> Row:
    """A second submit of a tree of 1 GB of which one file has changed, to the job in the queue."""
    project = lab.place.project("plain.py")
    for number in range(TREE_FILES):
        (project / f"part-{number:04}.bin").write_bytes(os.urandom(TREE_FILE_BYTES))
    lab.place.gangline("wait", lab.submit(project, "plain.py", lab.out()[1]))
    values = []
    for number in range(3):
        (project / f"part-{number:04}.bin").write_bytes(os.urandom(TREE_FILE_BYTES))
        began = time.monotonic()
        run = lab.submit(project, "plain.py", lab.out()[1])
        wait_until(lambda: lab.knows(run), what="the job")  # noqa: B023 - of this turn
        values.append(time.monotonic() - began)
        lab.place.gangline("wait", run)
        lab.place.gangline("rm", run, "--yes", check=False)
    return Row(
        what="second submit of a tree of 1 GB with one changed file, to the job in Slurm's queue",
        unit="s",
        ours=statistics.median(values),
        goal="< 2",
        met=statistics.median(values) < 2,
        samples=len(values),
        spread=(min(values), max(values)),
    )


def last_time(out: Path) -> float:
    """When the last of 8 ranks was done."""
    wait_until(lambda: len(list(out.glob("rank-*"))) == 8, what="8 ranks", pause_s=0.01)
    time.sleep(0.05)
    return max(float(path.read_text()) for path in out.glob("rank-*"))
