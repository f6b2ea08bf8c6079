"""The bridge on a real login node: one connection through the bastion, which carries commands, uploads and mirrors."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.slurm.cluster import Cluster, wait_for

from gangline.backends.slurm.ferry import Ferry, Pace
from gangline.backends.slurm.session import Session
from gangline.domain.errors import Transient
from gangline.domain.pool import SlurmPool
from gangline.rundir.home import Home

pytestmark = [pytest.mark.integration, pytest.mark.slurm]
JOB = """#!/bin/sh
mkdir -p {run}/attempts/0
for n in 1 2 3 4 5 6 7 8; do echo "line $n" >> {run}/attempts/0/rank-00000.log; sleep 0.3; done
echo '{{}}' > {run}/attempts/0/.result; mv {run}/attempts/0/.result {run}/attempts/0/result.json
"""


@pytest.fixture
def session(cluster: Cluster, tmp_path: Path) -> Iterator[Session]:
    options = ("-F", str(cluster.ssh_config))
    pool = SlurmPool(name="a", work=f"{cluster.work}/{tmp_path.name}", ssh="bastion", ssh_options=options)
    session = Session(pool, tmp_path / "home")
    yield session
    session.close()


def test_a_job_and_its_files_over_one_connection_that_breaks(
    cluster: Cluster, session: Session, tmp_path: Path
) -> None:
    assert session.hello().user == cluster.user
    assert session.run(["squeue", "--version"]).out.startswith("slurm")
    data = b"x" * 1_500_000
    session.store([(hashlib.sha256(data).hexdigest(), data)])
    assert session.missing([hashlib.sha256(data).hexdigest()]) == []
    run = f"{session.pool.work}/runs/r"
    session.write("runs/r/launches/000/job.sh", JOB.format(run=run).encode(), mode=0o700)
    script = f"{run}/launches/000/job.sh"
    submitted = session.run(["sbatch", "--parsable", "-o", f"{run}/launches/000/job.log", script])
    assert submitted.rc == 0, submitted.err
    home = Home(tmp_path / "home")
    ferry = Ferry(session, home, name="a", pace=Pace(retry_s=0.2))
    ferry.follow("r")
    ferry.start()
    try:
        log = home.run("r").attempt(0).log(0)
        wait_for("the first line", log.exists)
        cluster.restart_bastion()

        def is_finished() -> bool:
            session.retry()
            return home.run("r").attempt(0).result.exists() and ferry.finish("r")

        wait_for("the mirror to be whole", is_finished, lambda: ferry.problem("r"))
        assert log.read_text() == "".join(f"line {number}\n" for number in range(1, 9))
    finally:
        ferry.close(0.0)
        session.close()
        ferry.close()


def test_a_bastion_that_is_away_is_told_and_left_alone_for_a_while(cluster: Cluster, session: Session) -> None:
    cluster.stop_bastion()
    with pytest.raises(Transient, match="cannot be reached"):
        session.hello()
    began = time.monotonic()
    with pytest.raises(Transient, match="cannot be reached"):
        session.hello()
    assert time.monotonic() - began < 5
    cluster.start_bastion()
    session.retry()
    assert session.hello().user == cluster.user
