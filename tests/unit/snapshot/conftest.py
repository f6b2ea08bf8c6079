from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gangline.snapshot.pack import Packed, pack


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
def packed(tmp_path: Path) -> Callable[..., Packed]:
    def call(root: Path, **options: object) -> Packed:
        return pack(root, home=tmp_path / "home", **options)

    return call


@pytest.fixture
def git(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., str]:
    """Run git in a folder, with nobody's configuration but the test's."""
    config = tmp_path / "gitconfig"
    config.write_text(
        '[user]\nname = T\nemail = t@example.org\n[init]\ndefaultBranch = main\n[protocol "file"]\nallow = always\n'
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    for name in [name for name in os.environ if name in {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"}]:
        monkeypatch.delenv(name)

    def call(folder: Path, *args: str) -> str:
        return subprocess.run(["git", "-C", folder, *args], check=True, capture_output=True, text=True).stdout

    return call
