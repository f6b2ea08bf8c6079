"""The example that newcomers copy: it resumes exactly, and the demo does what it says, at a smaller size."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "gpt"

pytestmark = [pytest.mark.integration, pytest.mark.torch]


def train_alone(folder: Path, *args: str) -> str:
    command = [sys.executable, str(EXAMPLE / "train.py"), "--batch", "2", "--width", "32", "--layers", "1", *args]
    return subprocess.run(command, cwd=folder, text=True, capture_output=True, check=True, timeout=120).stdout


def test_a_resumed_run_ends_with_the_same_weights(tmp_path: Path):
    import torch  # noqa: PLC0415 - seconds, which those who skip this test need not pay

    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir()
    cut.mkdir()
    train_alone(whole, "--steps", "12", "--save-every", "6")
    half, full = sorted((whole / "checkpoints").glob("step-*"))
    shutil.copytree(half, cut / "checkpoints" / half.name)
    output = train_alone(cut, "--steps", "12", "--save-every", "6")
    assert "starting at step 6" in output
    resumed = next((cut / "checkpoints").glob("step-*12.*"))
    expected, got = (torch.load(path / "state.pt", weights_only=True)["model"] for path in (full, resumed))
    assert all(torch.equal(expected[name], got[name]) for name in expected)


def test_the_text_is_split_the_same_everywhere():
    probe = "import train; a, b = train.load_text(); print(len(a), len(b), int(a.sum()), int(b.sum()))"
    first, second = (
        subprocess.run([sys.executable, "-c", probe], cwd=EXAMPLE, text=True, capture_output=True, check=True).stdout
        for _ in range(2)
    )
    assert first == second
    training, held_out = map(int, first.split()[:2])
    assert held_out > training / 20


@pytest.mark.timeout(300)
def test_the_demo_survives_its_kill(home: Path):
    command = [sys.executable, str(EXAMPLE / "demo.py"), "--steps", "80", "--save-every", "20", "--batch", "2"]
    env = {**os.environ, "GANGLINE_HOME": str(home)}
    done = subprocess.run(command, env=env, text=True, capture_output=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kill -9" in done.stdout
