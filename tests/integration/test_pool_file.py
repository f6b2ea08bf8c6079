"""`pools.yaml` with a fault: every command that names a pool says where it is, and the other pools serve."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conftest import gangline

pytestmark = pytest.mark.integration

ASKS = [("pools", verb, "lab") for verb in ("show", "doctor", "login", "jobs", "nodes")]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("pools:\n  lab: [\n", "line 3 is not YAML"),
        ("pools:\n  lab: {work: /s/x, sssh: bastion}\n", "line 2) is not a key of a pool. fix: Did you mean `ssh`?"),
        ("pools:\n  lab: {work: /s/x, poll: often}\n", "line 2)"),
    ],
)
def test_every_command_names_what_is_wrong_with_the_file_of_pools(
    shared_server: Path, tmp_path: Path, text: str, says: str
):
    pools = shared_server / "pools.yaml"
    pools.write_text(text)
    (tmp_path / "train.py").touch()
    try:
        for words in [("submit", "--pool", "lab", "train.py"), *ASKS, ("pools", "clear", "n1", "--pool", "lab")]:
            done = gangline(*words, home=shared_server, cwd=tmp_path)
            told = " ".join(done.stderr.split())
            assert done.returncode in {64, 66}, told
            assert str(pools) in told, told
            assert says in told, told
        assert gangline("submit", "--dry-run", "train.py", home=shared_server, cwd=tmp_path).returncode == 0
    finally:
        pools.unlink()
