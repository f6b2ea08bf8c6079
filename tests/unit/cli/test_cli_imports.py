"""What a command imports is what it makes people wait for."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROBE = """
import json, sys
from gangline.cli import connection
from gangline.cli.main import main
class Client:
    def list_runs(self, **_): return []
    def health(self): return {"warnings": []}
if sys.argv[1] == "fake": connection.connect = lambda **_: Client()
code = main(sys.argv[2:])
sys.stderr.write(json.dumps([code, sorted({name.partition('.')[0] for name in sys.modules})]))
"""


def modules_after(connection: str, *args: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", PROBE, connection, *args], capture_output=True, text=True, check=True)
    code, modules = json.loads(done.stderr.splitlines()[-1])
    assert code == 0
    return set(modules)


HEAVY = {"httpx", "rich", "pydantic", "yaml", "sqlalchemy", "fastapi", "uvicorn", "torch", "numpy", "traceback"}


def test_help_imports_click_alone():
    assert not modules_after("none", "--help") & HEAVY


@pytest.mark.parametrize("command", ["submit", "ps", "watch", "show", "init"])
def test_help_of_a_command_needs_no_server(command: str):
    assert not modules_after("none", command, "--help") & (HEAVY - {"traceback"})


def test_ps_draws_without_rich_or_pydantic():
    assert not modules_after("fake", "ps") & (HEAVY - {"traceback"})


def test_the_client_needs_no_pydantic():
    code = "import sys, gangline.client.connection; print('pydantic' in sys.modules, 'sqlalchemy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_what_follows_a_run_is_imported_once_it_is_queued():
    code = "import sys, gangline.cli.submit; print('gangline.cli.follow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_submit_waits_for_nothing_that_it_does_not_use():
    unused = ["pool", "gang", "signatures", "redact"]
    code = f"""
import sys, gangline.cli.submit, gangline.cli.follow, gangline.client.submission, gangline.wire.flags
print([name for name in {unused} if "gangline.domain." + name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
