"""The examination of a Slurm pool says of each thing how it is, and what to do where it is not as it should be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gangline.backends.slurm.doctor import examine, render_deep
from gangline.backends.slurm.link import Probed, Ran
from gangline.domain.errors import AuthFailed
from gangline.domain.pool import Finding, SlurmPool, Verdict
from gangline.domain.spec import SlurmOptions
from gangline.testing.link import LocalLink

CONFIG = "AccountingStorageType   = accounting_storage/slurmdbd\nMinJobAge               = 300 sec\n"
SINFO = "main|up|7-00:00:00|2|gpu:8(S:0-1)|main*\ndebug|down|1:00:00|1|(null)|debug\n"
HEALTHY = {
    "--version": Ran(rc=0, out="slurm 23.11.4\n", err=""),
    "ping": Ran(rc=0, out="Slurmctld(primary) at head is UP\n", err=""),
    "stat": Ran(rc=0, out="nfs\n", err=""),
    "sinfo": Ran(rc=0, out=SINFO, err=""),
    "config": Ran(rc=0, out=CONFIG, err=""),
    "sacct": Ran(rc=0, out="", err=""),
    "sacctmgr": Ran(rc=0, out="team|normal,high\n", err=""),
}


class Cluster(LocalLink):
    """Answers commands by a table."""

    def __init__(self, work: Path) -> None:
        super().__init__(work)
        self.answers: dict[str, Ran] = dict(HEALTHY)
        self.skew_s = 0.0
        self.probed: Probed | None = Probed(exists=True, writable=True, free_bytes=10**12)

    def hello(self):
        return replace(super().hello(), clock_offset_s=self.skew_s)

    def probe(self, folder: str) -> Probed:
        return self.probed or super().probe(folder)

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> Ran:  # noqa: ARG002
        word = next((word for word in (argv[-1], argv[0], *argv) if word in self.answers), None)
        return self.answers[word] if word is not None else Ran(rc=127, out="", err=f"{argv[0]}: command not found\n")


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path / "work")


def look(cluster: Cluster, *, deep: bool = False, **keys) -> Mapping[str, Finding]:
    pool = SlurmPool(name="far", work=str(cluster.work), **keys)
    return {one.check: one for one in examine(pool, cluster, home=cluster.work, deep=deep)}


def test_a_healthy_cluster_is_ok_in_every_line(cluster):
    found = look(cluster)
    assert {one.verdict for one in found.values()} == {Verdict.OK}, found
    assert list(found) == [
        "connection", "clock", "commands", "controller", "python", "work folder", "partitions", "accounting", "limits",
    ]  # fmt: skip
    assert "main (2 nodes, gpu:8, time limit 7-00:00:00)" in found["partitions"].text
    assert "Slurm 23.11.4" in found["commands"].text


def test_without_a_connection_that_is_all_there_is_to_say(cluster):
    cluster.error = AuthFailed("Pool `far`: login needed on `bastion`", why="Password", fix="Run: ssh -fN")
    found = look(cluster)
    assert list(found) == ["connection"]
    assert (found["connection"].verdict, found["connection"].fix) == (Verdict.FAILED, "Run: ssh -fN")


def test_what_a_dead_controller_would_have_said_is_not_checked(cluster):
    down = Ran(rc=1, out="Slurmctld(primary) at head is DOWN\n", err="")
    silent = Ran(rc=1, out="", err="slurm_load_partitions: Unable to contact slurm controller (connect failure)\n")
    cluster.answers |= {"ping": down, "sinfo": silent, "config": silent, "sacct": silent, "srun": silent}
    found = look(cluster, deep=True, defaults=SlurmOptions(account="team"))
    failed = [check for check, one in found.items() if one.verdict is Verdict.FAILED]
    assert failed == ["controller"], "the one cause"
    unchecked = {check: one.text for check, one in found.items() if one.verdict is Verdict.UNCHECKED}
    assert set(unchecked) == {"partitions", "accounting", "limits", "compute node"}
    assert set(unchecked.values()) == {"Not checked, as the controller gives no answer."}


def test_without_the_commands_nothing_is_said_of_what_they_would_tell(cluster):
    cluster.answers["--version"] = Ran(rc=127, out="", err="sbatch: command not found\n")
    found = look(cluster)
    assert [check for check, one in found.items() if one.verdict is Verdict.FAILED] == ["commands"]
    assert "controller" not in found
    assert found["partitions"].text == "Not checked, as commands are missing."


WRONG = [
    ("commands", Verdict.FAILED, {"--version": Ran(rc=127, out="", err="sbatch: command not found\n")}, {}, "sbatch"),
    ("controller", Verdict.FAILED, {"ping": Ran(rc=1, out="Slurmctld(primary) at head is DOWN\n", err="")}, {}, "DOWN"),
    ("partitions", Verdict.FAILED, {}, {"defaults": SlurmOptions(partition="gpu")}, "no partition `gpu`"),
    ("partitions", Verdict.FAILED, {}, {"defaults": SlurmOptions(partition="debug")}, "None of them is up"),
    ("partitions", Verdict.WARNING, {"sinfo": Ran(rc=0, out=SINFO.replace("main*", "main"), err="")}, {}, "default"),
    ("partitions", Verdict.FAILED, {"sinfo": Ran(rc=1, out="", err="sinfo: error: x\n")}, {}, "sinfo: error: x"),
    ("work folder", Verdict.WARNING, {"stat": Ran(rc=0, out="tmpfs\n", err="")}, {}, "one machine alone"),
    ("accounting", Verdict.WARNING, {"sacct": Ran(rc=1, out="", err="storage is disabled\n")}, {}, "is disabled"),
    ("accounting", Verdict.FAILED, {}, {"defaults": SlurmOptions(account="other")}, "no account `other`"),
    ("accounting", Verdict.WARNING, {}, {"defaults": SlurmOptions(qos="low")}, "may not use QOS `low`"),
    ("limits", Verdict.WARNING, {"config": Ran(rc=0, out="MinJobAge = 10 sec\n", err="")}, {}, "forgets ended jobs"),
]


@pytest.mark.parametrize(("check", "verdict", "answers", "keys", "says"), WRONG, ids=[w[4] for w in WRONG])
def test_what_is_wrong_is_said_with_what_to_do(cluster, check, verdict, answers, keys, says):
    cluster.answers |= answers
    found = look(cluster, **keys)[check]
    assert (found.verdict, says in found.text) == (verdict, True), found
    assert found.fix


def test_clocks_that_differ_and_folders_that_cannot_be_used(cluster):
    cluster.skew_s = -7.0
    assert look(cluster)["clock"].verdict is Verdict.WARNING
    cluster.skew_s = 300.0
    cluster.probed = Probed(exists=False, writable=False, free_bytes=0, why_not="/w: Read-only file system")
    found = look(cluster)
    assert "300.0 s ahead" in found["clock"].text
    assert found["clock"].verdict is Verdict.FAILED
    assert "Read-only file system" in found["work folder"].text
    assert found["work folder"].verdict is Verdict.FAILED


def test_a_deep_examination_asks_a_node_what_it_sees(cluster):
    pool = SlurmPool(name="far", work="/w", defaults=SlurmOptions(partition="gpu", account="team"))
    words = render_deep(pool, "/w/doctor/x", "abcdef0123")
    assert {"--partition=gpu", "--account=team", "--immediate=60"} <= {*words}
    assert words[-1] == "/w/doctor/x"
    cluster.answers["srun"] = Ran(rc=1, out="", err="srun: error: Unable to allocate resources: Bad account\n")
    found = look(cluster, deep=True)["compute node"]
    assert (found.verdict, "Bad account" in found.text) == (Verdict.FAILED, True)
    cluster.answers["srun"] = Ran(rc=0, out="host=node07\nseen=\npython=3.11.2\n", err="")
    assert "node07 does not see" in look(cluster, deep=True)["compute node"].text
