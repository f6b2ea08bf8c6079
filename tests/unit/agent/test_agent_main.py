"""What an agent says, and ends with, when it cannot begin."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from gangline.agent import main as agent
from gangline.agent.site import EXIT_STORAGE
from gangline.rundir.space import STORAGE_WORDS

CALL = ["agent", "/runs/a", "--launch", "0", "--node", "0"]


def test_a_full_disk_has_its_own_exit_code_and_words(monkeypatch, capfd):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device", "/runs/a/launches/000/node-000.lock")

    monkeypatch.setattr(agent, "run_agent", refuse)
    assert agent.main(CALL) == EXIT_STORAGE
    said = capfd.readouterr().err
    assert f"{STORAGE_WORDS}: /runs/a/launches/000/node-000.lock cannot be written: No space left on device" in said


def test_other_trouble_is_a_fault_of_the_agent(monkeypatch):
    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(agent, "run_agent", fail)
    with pytest.raises(OSError, match="Input"):
        agent.main(CALL)


def test_a_log_on_a_full_disk_ends_nobody():
    code = "from gangline.agent.site import complain; complain('the disk is full')"
    with Path("/dev/full").open("wb") as full:
        assert subprocess.run([sys.executable, "-c", code], stderr=full, check=False).returncode == 0
