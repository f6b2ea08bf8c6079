"""The script behind `make setup`: does nothing when all is done, and says what to install when it cannot."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
from pathspec import GitIgnoreSpec

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bootstrap(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("bootstrap", ROOT / "tools" / "bootstrap.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def refuse(*command: object, **_: object) -> None:
        raise AssertionError(f"started {command}")

    monkeypatch.setattr(module.subprocess, "run", refuse)
    return module


def make_stamp(venv: Path, extras: str) -> Path:
    venv.mkdir()
    stamp = venv / ".ready"
    stamp.write_text(f"{extras}\n")
    return stamp


def test_a_finished_environment_costs_nothing(bootstrap: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    make_stamp(tmp_path / "venv", bootstrap.EXTRAS)
    monkeypatch.setattr(sys, "argv", ["bootstrap", "--venv", str(tmp_path / "venv")])
    assert bootstrap.main() == 0


@pytest.mark.parametrize("stale", ["older", "other extras", "missing"])
def test_a_stamp_that_does_not_fit_is_not_fresh(bootstrap: ModuleType, tmp_path: Path, stale: str):
    stamp = make_stamp(tmp_path / "venv", "torch" if stale == "other extras" else bootstrap.EXTRAS)
    if stale == "older":
        os.utime(stamp, (0, 0))
    elif stale == "missing":
        stamp.unlink()
    assert not bootstrap._is_fresh(stamp, extras=bootstrap.EXTRAS)


def test_a_python_that_cannot_make_environments_gets_advice(
    bootstrap: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(bootstrap.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(bootstrap.shutil, "which", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["bootstrap", "--venv", str(tmp_path / "venv")])
    assert bootstrap.main() == 1
    assert f"apt install python3.{sys.version_info.minor}-venv" in capsys.readouterr().err


def test_a_half_made_environment_is_made_again(bootstrap: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A stamp is written last, so what a cut-off call left has none, and its Python may not even start."""
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    started: list[list[str]] = []

    class Done:
        returncode = 1

    def run(command: list[object], **_: object) -> Done:
        started.append([str(word) for word in command])
        return Done()

    monkeypatch.setattr(bootstrap.subprocess, "run", run)
    monkeypatch.setattr(sys, "argv", ["bootstrap", "--venv", str(tmp_path / "venv")])
    assert bootstrap.main() == 1
    assert [sys.executable, "-m", "venv", str(tmp_path / "venv")] in started
    assert not python.exists()


def test_what_make_writes_beside_the_sources_is_ignored_by_git_and_cleaned_up():
    ignored = GitIgnoreSpec.from_lines((ROOT / ".gitignore").read_text().splitlines())
    assert [name for name in (".venv/x", ".venv.lock", "site/index.html") if not ignored.match_file(name)] == []
    recipe = (ROOT / "Makefile").read_text().partition("\nclean:")[2]
    assert '"$(VENV).lock"' in recipe
