"""`--sbatch`: what the client makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangline.client.batchscript import adopt_batch_script
from gangline.domain.errors import SpecInvalid
from gangline.domain.spec import EntryKind, Resources, RunSpec, SlurmOptions, Strategy

TEXT = "#!/bin/bash\n#SBATCH --job-name=nightly --nodes=2\nsrun hostname\n"


@pytest.fixture
def project(tmp_path):
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "old.sbatch").write_text(TEXT)
    return tmp_path


def spec_of(script, **fields):
    return RunSpec(entry=script, args=("a b",), slurm=SlurmOptions(script=script), **fields)


def test_a_script_becomes_a_command_with_its_own_options(project):
    adopted = adopt_batch_script(spec_of("jobs/old.sbatch"), cwd=project, root=project)
    assert (adopted.entry, adopted.entry_kind, adopted.args) == ("./jobs/old.sbatch", EntryKind.COMMAND, ("a b",))
    assert (adopted.name, adopted.strategy) == ("nightly", Strategy.NONE)
    assert adopted.slurm.script == "jobs/old.sbatch"
    assert adopted.slurm.directives == {"job-name": "nightly", "nodes": "2"}


def test_it_may_be_named_by_its_whole_path(project):
    script = str(project / "jobs" / "old.sbatch")
    adopted = adopt_batch_script(spec_of(script, name="mine"), cwd=project / "jobs", root=project)
    assert (adopted.slurm.script, adopted.name) == ("old.sbatch", "mine")


def test_other_runs_are_left_alone(project):
    spec = RunSpec(entry="train.py")
    assert adopt_batch_script(spec, cwd=project, root=project) is spec


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"resources": Resources(nodes=2)}, "--nodes"),
        ({"resources": Resources(procs_per_node=4)}, "--procs-per-node"),
        ({"entry": "train.py"}, "train.py"),
        ({"slurm": SlurmOptions(script="none.sbatch"), "entry": "none.sbatch"}, "none.sbatch"),
        ({"slurm": SlurmOptions(script="/etc/hostname"), "entry": ""}, "outside"),
    ],
)
def test_what_does_not_go_together_is_refused(project, change, words):
    spec = replace(spec_of("jobs/old.sbatch"), **change)
    with pytest.raises(SpecInvalid, match=words):
        adopt_batch_script(spec, cwd=project, root=project)
