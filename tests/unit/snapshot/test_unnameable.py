"""Trees that the system cannot name: paths longer than it takes, links in a circle."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gangline.domain.errors import SnapshotRefused
from gangline.snapshot.pack import Packed


def make_deep(folder: Path, name: str = "d" * 200, levels: int = 25) -> None:
    """Folders within folders, until their path is longer than 4096 bytes."""
    at = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=at)
        inner = os.open(name, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(os.open("deep.py", os.O_CREAT | os.O_WRONLY, dir_fd=at))
    os.close(at)


def test_a_tree_deeper_than_the_system_can_name_is_refused_by_the_name_of_its_top(project: Path, packed: Callable):
    (project / "nest").mkdir()
    make_deep(project / "nest")
    with pytest.raises(SnapshotRefused, match=r"In the folder nest/, .*longer than the system can handle") as refused:
        packed(project)
    assert len(str(refused.value)) < 500


def test_such_a_tree_can_be_left_out(project: Path, packed: Callable[..., Packed]):
    (project / "nest").mkdir()
    make_deep(project / "nest")
    (project / "train.py").touch()
    (project / ".ganglineignore").write_text("nest/\n")
    assert [entry.path for entry in packed(project).manifest.files if entry.path.endswith(".py")] == ["train.py"]


def test_links_in_a_circle_are_packed_as_links(project: Path, packed: Callable[..., Packed]):
    (project / "loop").symlink_to("loop")
    (project / "a").symlink_to("b")
    (project / "b").symlink_to("a")
    assert {entry.path: entry.kind for entry in packed(project).manifest.files} == dict.fromkeys(
        ("loop", "a", "b"), "link"
    )
