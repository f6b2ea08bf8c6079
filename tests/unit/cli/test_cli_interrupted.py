"""Ctrl-C at awkward moments: while the command line is still importing, and between the question and its answer."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gangline.cli import early

IMPORTING = """
import os, signal, sys
sys.argv[0] = {argv0!r}
class Interrupt:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
from gangline.cli.main import main
sys.exit(main(["version", "--client"]))
"""


@pytest.mark.parametrize("module", ["click", "gangline.cli.lazy", "gangline.cli.version"])
def test_ctrl_c_during_imports_is_one_word(module: str):
    code = IMPORTING.format(argv0="/usr/bin/gangline", module=module)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_who_imports_the_command_line_keeps_its_own_ctrl_c(monkeypatch: pytest.MonkeyPatch):
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    early.arm()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_shell_that_ignores_ctrl_c_is_obeyed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "argv", ["gangline"])
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        early.arm()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("option", ["--follow", "--detach"])
def test_ctrl_c_after_the_question_says_that_there_may_be_a_run(
    gangline: Any, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
):
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(client, "submit", interrupted)
    result = gangline("submit", option, "train.py")
    assert result.code == 130
    assert "may have been submitted" in result.err
    assert "gangline ps" in result.err
