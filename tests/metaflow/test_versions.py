"""`@gang` with older releases of Metaflow, from a plain installation, as users have it."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.conftest import lack

if TYPE_CHECKING:
    from tests.metaflow.flowruns import Flows

pytestmark = [pytest.mark.integration, pytest.mark.metaflow]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def environment(tmp_path: Path) -> Callable[[str], Path]:
    """Make an environment with Gangline installed, not linked, and a release of Metaflow; returns its Python.

    All else comes from the environment of the tests.
    """

    def make(version: str) -> Path:
        venv.create(tmp_path / "venv", with_pip=False)
        python = tmp_path / "venv/bin/python"
        asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        packages = Path(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip())
        wanted = [str(ROOT), f"metaflow=={version}"]
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(packages), *wanted]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            lack(f"needs a package index to install Metaflow {version}: {done.stderr.strip().splitlines()[-1]}")
        (packages / "tests.pth").write_text(sysconfig.get_path("purelib"))
        return python

    return make


@pytest.mark.timeout(400)
@pytest.mark.parametrize("version", ["2.18.13", "2.19.23"])
def test_a_gang_fails_and_is_resumed(flows: Flows, environment: Callable[[str], Path], version: str) -> None:
    flows.python = environment(version)
    code, output = flows.run("steps", "run", ASKED="fail=1")
    assert code == 1
    assert f"Metaflow {version} executing" in output
    assert "ValueError: rank 1 had trouble in attempt 0" in output
    code, output = flows.run("steps", "resume", ASKED="fail=1")
    assert code == 0, output
    task = flows.task("StepsFlow", "train")
    assert (task["data"]["begin"], task["data"]["attempt"]) == ("3", "1")
