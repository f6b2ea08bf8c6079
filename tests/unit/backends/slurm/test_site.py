"""A cluster as files and programs: what is asked of its login node before a run waits, and what is not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gangline.backends.slurm.site import SlurmSite
from gangline.domain.errors import AuthFailed, SpecInvalid, Transient
from gangline.domain.pool import PoolState, PoolStatus, SlurmPool
from gangline.domain.spec import Resources, SlurmOptions
from gangline.rundir.checkpoints import folder_name
from gangline.rundir.commits import commit
from gangline.testing import make_spec
from gangline.testing.link import LocalLink


@pytest.fixture
def link(tmp_path: Path) -> LocalLink:
    return LocalLink(tmp_path / "work")


def site(link: LocalLink, **keys) -> SlurmSite:
    return SlurmSite(SlurmPool(name="far", work=str(link.work), **keys), link)


@pytest.mark.parametrize("dependency", ["singleton", "afterok:12", "afterok:12:13,afterany:7_3", "after:9+5?afterok:3"])
def test_dependencies_of_slurm_are_let_through(link, dependency):
    site(link).check(make_spec(slurm=SlurmOptions(dependency=dependency)))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dependency": "after"}, "no dependency of Slurm"),
        ({"dependency": "afterok:12; rm -rf /"}, "no dependency of Slurm"),
        ({"dependency": "afterok:1,afterok:2?after:3"}, "cannot be mixed"),
        ({"partition": "gpu\n#SBATCH --uid=0"}, "line breaks"),
        ({"options": {"Wrap": "x"}}, "long names of small letters"),
        ({"options": {"wrap": "x"}}, "a run is one job|A run is one job"),
        ({"gres": "gpu:2"}, "Both are devices"),
    ],
)
def test_what_sbatch_must_not_be_given_is_refused_at_submit(link, options, says):
    spec = make_spec(slurm=SlurmOptions(**options), resources=Resources(gpus_per_node=2))
    with pytest.raises(SpecInvalid, match=says):
        site(link).check(spec)


def test_an_interpreter_is_one_of_the_cluster_and_never_that_of_the_client(link, tmp_path):
    here = site(link)
    assert here.python(None, {"python": sys.executable}) == "python3"
    assert site(link, ranks_python="/far/python").python("python3.11", {}) == "python3.11"
    assert here.python(sys.executable, {}) == sys.executable
    assert "run" in link.asked
    env = tmp_path / "venv" / "bin"
    env.mkdir(parents=True)
    (env / "python").symlink_to(sys.executable)
    assert here.python(str(env.parent), {}) == str(env / "python")
    for wrong in ("/no/python", "venv/bin/python", str(tmp_path)):
        with pytest.raises(SpecInvalid):
            here.python(wrong, {})


def test_checkpoints_lie_on_the_cluster(link, tmp_path):
    here, root = site(link), tmp_path / "ckpt"
    assert here.checkpoints(str(root)) == []
    assert here.checkpoint(str(root / folder_name(3, 0))) is None
    for step in (3, 5):
        folder = root / folder_name(step, 0)
        folder.mkdir(parents=True)
        (folder / "model").write_bytes(b"x")
        if step == 3:
            commit(folder, step=step, attempt=0, world_size=1, run_id="r")
    (root / "latest").symlink_to(folder_name(3, 0))
    assert [(one.step, one.complete) for one in here.checkpoints(str(root))] == [(3, True), (5, False)]
    latest = here.checkpoint(str(root / "latest"))
    assert (latest.step, latest.complete, latest.run_id) == (3, True, "r")
    assert not here.checkpoint(str(root)).complete
    here.probe_writable(str(root / "new"), "--checkpoint-path")
    (tmp_path / "file").touch()
    with pytest.raises(SpecInvalid, match="Nothing can be written"):
        here.probe_writable(str(tmp_path / "file" / "x"), "--checkpoint-path")


def test_nobody_waits_for_a_connection_that_is_not_there(link):
    here = site(link)
    link.error = AuthFailed("Pool `far` wants a password")
    with pytest.raises(AuthFailed, match="Log in: gangline pools login far"):
        here.probe_writable("/x", "--checkpoint-path")
    link.error = Transient("`bastion` cannot be reached")
    with pytest.raises(Transient, match="cannot be reached"):
        here.checkpoints("/x")
    assert here.python(None, {}) == "python3"  # nothing of it has to be asked
    assert link.asked == []


def test_the_first_connection_since_the_server_started_is_tried(link, monkeypatch):
    states = [PoolState(status=PoolStatus.UNTRIED), PoolState()]
    monkeypatch.setattr(link, "state", lambda: states.pop(0) if len(states) > 1 else states[0])
    assert site(link).checkpoints("/nowhere") == []
    assert link.asked == ["hello", "checkpoints"]
