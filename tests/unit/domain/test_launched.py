"""The script behind a launcher, an interpreter or a shell: found where that is certain, left alone elsewhere."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.domain.launched import find_launched, render_instead


def scripts(line: str) -> list[tuple[str, bool]]:
    return [(found.script, found.sure) for found in find_launched(shlex.split(line))]


@pytest.mark.parametrize(
    "line",
    [
        "bash x.py.sh",
        "bash -l x.sh a.sh b",
        "/bin/sh -e ./x.sh",
        "python x.py y.py",
        "/usr/bin/python3.11 -u -X dev -W ignore x.py",
        "env A=1 nice -n 5 timeout 10 python x.py",
        "uv run python x.py",
        "conda run -n my-env python x.py",
        "sh -c 'python x.py'",
        "bash -lc 'A=1 python x.py > log 2>&1'",
        "bash -eo pipefail -c 'python x.py | tee log'",
        "bash -c 'set -e; export A=1\nexec python x.py'",
        "bash -c 'bash x.sh'",
        "torchrun x.py",
        "torchrun --standalone --nproc-per-node 4 x.py --config y.py",
        "torchrun --no-python --nproc_per_node=2 bash x.sh",
        "python -m torch.distributed.run --nnodes=2 x.py",
        "python -um torch.distributed.launch --use-env x.py",
        "accelerate launch --multi_gpu --config_file a.yaml x.py",
        "deepspeed --num_gpus=4 x.py --deepspeed ds.json",
        "mpirun -np 4 -x LD_LIBRARY_PATH python x.py",
    ],
)
def test_a_script_that_surely_runs(line):
    (script, sure), *_ = scripts(line)
    assert script.removeprefix("./") in {"x.py", "x.sh", "x.py.sh"}
    assert sure


@pytest.mark.parametrize(
    "line",
    [
        "bash -c './prepare && python x.py'",
        "bash -c 'echo 1 > x.py; python x.py'",
        "bash -c 'if true; then python x.py; fi'",
        "bash -c 'python a.py || python x.py'",
        "bash -c 'true || python x.py'",
        "accelerate launch --some-new-option x.py",
    ],
)
def test_a_script_that_may_be_made_first_or_be_a_value(line):
    assert scripts(line)[-1] == ("x.py", False)


@pytest.mark.parametrize(
    "line",
    [
        "./train.sh x.py",
        "python -c pass x.py",
        "python - x.py",
        "python -m pkg.tool x.py",
        "bash -s x.sh",
        "bash -c 'cd sub && python x.py'",
        "bash -c 'cat > x.py <<EOF\npass\nEOF\npython x.py'",
        "bash -c 'python $SCRIPT.py'",
        "bash -c 'python $(which x.py)'",
        "bash -c 'python \"x.py'",
        "bash",
        "bash -c",
        "torchrun -m pkg.train x.py",
        "torchrun train x.py",
        "uv run --directory sub python x.py",
        "mpirun --wdir /data -np 2 python x.py",
        "accelerate",
        "python -m torch.distributed.run",
    ],
)
def test_what_is_not_clear_is_left_alone(line):
    assert scripts(line) == []


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("torchrun --nproc-per-node 4 x.py --lr 1", "gangline submit --procs-per-node 4 x.py --lr 1"),
        ("torchrun --nnodes=2 --nproc_per_node=8 x.py", "gangline submit --nodes 2 --procs-per-node 8 x.py"),
        ("python -m torch.distributed.run --standalone x.py", "gangline submit x.py"),
        ("torchrun --nproc-per-node gpu x.py", "gangline submit x.py"),
        (
            "accelerate launch --num_processes 8 --num_machines 2 x.py 'a b'",
            "gangline submit --nodes 2 --procs-per-node 4 --strategy accelerate x.py 'a b'",
        ),
        ("deepspeed --num_gpus 4 x.py", "gangline submit --procs-per-node 4 --strategy deepspeed x.py"),
        ("mpirun -np 4 python x.py", "gangline submit --procs-per-node 4 x.py"),
        ("srun -N 2 -n 8 python x.py", "gangline submit --nodes 2 --procs-per-node 4 x.py"),
        ("torchrun --no-python --nproc-per-node 2 bash x.sh 1", "gangline submit --procs-per-node 2 -- bash x.sh 1"),
    ],
)
def test_what_to_type_instead_of_a_launcher(line, instead):
    (found,) = find_launched(shlex.split(line))
    assert found.spreads
    assert render_instead(found) == instead


def test_options_that_are_given_already_are_kept():
    (found,) = find_launched(shlex.split("torchrun --nproc-per-node 4 x.py"))
    assert render_instead(found, ["--nodes", "2", "--name", "a b"]) == (
        "gangline submit --nodes 2 --name 'a b' --procs-per-node 4 x.py"
    )


_WORDS = st.sampled_from(
    [
        *["bash", "-c", "python", "-m", "torchrun", "x.py", "x.sh", "--a", "4", "--np=2", "cd", "if", "env", "mpirun"],
        *["torch.distributed.run", "accelerate", "launch", "a && python x.py", "'", "> x", "", "-", "uv", "run"],
    ]
)


@given(st.lists(_WORDS, max_size=8))
def test_no_line_breaks_it(words):
    for found in find_launched(words):
        assert found.script in {*words, *(word for text in words for word in text.split())}
