"""On a node with GPUs every rank takes one of its own. None is needed here: `torch.cuda` is made to say two."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = [ROOT / "src/gangline/templates/torch/train.py", ROOT / "examples/gpt/train.py"]
GUIDE = ROOT / "docs/how-to/training-script.md"

pytestmark = [pytest.mark.integration, pytest.mark.torch]

TWO_GPUS = """
import sys, torch, gangline
chosen = []
torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: 2
torch.cuda.set_device = chosen.append
torch.cuda.current_device = lambda: chosen[-1]
"""
CALL = "import runpy; pick = runpy.run_path(sys.argv[1], run_name='module')['pick_device']\n"


def run(code: str, *args: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *args], text=True, capture_output=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.parent.name)
def test_ranks_take_a_gpu_each_and_the_cpu_where_there_is_none(script: Path):
    picked = run(f"{TWO_GPUS}{CALL}print([str(pick(rank)) for rank in range(3)], chosen)", str(script))
    assert picked.strip() == "['cuda:0', 'cuda:1', 'cuda:0'] [0, 1, 0]"
    alone = "import sys, torch\ntorch.cuda.is_available = lambda: False\n"
    assert run(f"{alone}{CALL}print(pick(1))", str(script)).strip() == "cpu"


def test_the_guide_shows_the_same():
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    block = next(found for found in blocks if "init_process" in found)
    fake = (
        "import types, torch.distributed as dist\n"
        "gangline.current = lambda: types.SimpleNamespace(local_rank=1, world_size=4)\n"
        "dist.init_process_group = print\n"
    )
    assert run(f"{TWO_GPUS}{fake}{block}\nprint(device)").split() == ["nccl", "cuda:1"]
