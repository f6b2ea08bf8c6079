"""Existing batch scripts, read as sbatch reads them."""

from __future__ import annotations

import pytest

from gangline.domain.batchscript import parse_batch_script
from gangline.domain.errors import SpecInvalid

OLD = """\
#!/bin/bash -l
# Trains the thing.
#SBATCH --job-name="my job" -N 2   # two of them
#SBATCH -n8 --time=1:00:00
#SBATCH --gres gpu:a100:4
##SBATCH --account=commented
 #SBATCH --account=indented
#SBATCH --exclusive

#SBATCH -o logs/%x-%j.out
module load cuda
#SBATCH --partition=too_late
srun python train.py
"""


def test_options_are_those_that_sbatch_would_take():
    script = parse_batch_script(OLD, "old.sbatch")
    assert script.interpreter == ("/bin/bash", "-l")
    assert script.options == {
        "job-name": "my job",
        "nodes": "2",
        "ntasks": "8",
        "time": "1:00:00",
        "gres": "gpu:a100:4",
        "exclusive": "",
        "output": "logs/%x-%j.out",
    }


def test_the_last_of_several_counts():
    script = parse_batch_script("#!/bin/sh\n#SBATCH -p a\n#SBATCH --partition=b\n", "x")
    assert script.options == {"partition": "b"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("echo hi\n", "no `#!`"),
        ("#!/bin/bash\r\n#SBATCH -N 1\r\n", "DOS"),
        ("#!/bin/bash\n#SBATCH --array=0-9\n", "one job"),
        ("#!/bin/bash\n#SBATCH -a 0-9\n", "one job"),
        ("#!/bin/bash\n#SBATCH -M other\n", "one cluster"),
        ('#!/bin/bash\n#SBATCH --comment="never closed\n', "old.sbatch:2"),
        ("#!/bin/bash\n#SBATCH nonsense\n", "no option"),
    ],
)
def test_what_cannot_be_is_told_at_submit(text, words):
    with pytest.raises(SpecInvalid, match=r"old\.sbatch") as refused:
        parse_batch_script(text, "old.sbatch")
    assert words in str(refused.value)
