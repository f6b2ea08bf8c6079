"""Removals that had to wait are made up for, and the folder is tidied now and then."""

from pathlib import Path

import pytest

from gangline.backends.slurm.caretaker import Caretaker
from gangline.domain.errors import Transient
from gangline.rundir.home import Home
from gangline.testing.link import LocalLink


@pytest.fixture
def link(tmp_path: Path) -> LocalLink:
    return LocalLink(tmp_path / "work")


def caretaker(tmp_path: Path, link: LocalLink, monotonic=lambda: 0.0) -> Caretaker:
    return Caretaker(link, Home(tmp_path / "home").create(), pool="lab", monotonic=monotonic)


def test_a_removal_that_found_nobody_is_made_up_for_by_the_next_server(tmp_path: Path, link: LocalLink) -> None:
    run = tmp_path / "work" / "runs" / "r-1a1a"
    (run / "checkpoints" / "step-1").mkdir(parents=True)
    link.error = Transient("a100 cannot be reached")
    with pytest.raises(Transient):
        caretaker(tmp_path, link).clear("r-1a1a", keep_checkpoints=True)
    later = caretaker(tmp_path, link)
    later.look()
    assert run.exists()
    link.error = None
    later.look()
    assert not run.exists()
    assert (tmp_path / "work" / "kept" / "r-1a1a" / "step-1").is_dir()
    link.asked.clear()
    later.look()
    assert link.asked == [], "done is done"


def test_the_folder_is_tidied_once_a_day(tmp_path: Path, link: LocalLink) -> None:
    now = [0.0]
    care = caretaker(tmp_path, link, lambda: now[0])
    for now[0] in (10.0, 61.0, 100.0, 80_000.0, 86_500.0):
        care.look()
    assert link.asked == ["tidy", "tidy"]
    link.error = Transient("gone")
    now[0] = 200_000.0
    care.look()  # raises nothing


def test_a_removal_that_cannot_be_keeps_nothing_else_from_being_done(tmp_path: Path, link: LocalLink) -> None:
    (tmp_path / "work" / "runs" / "r-1a1a").mkdir(parents=True)
    link.error = Transient("a100 cannot be reached")
    with pytest.raises(Transient):
        caretaker(tmp_path, link).clear("r-1a1a", keep_checkpoints=False)
    link.error = None
    now = [0.0]
    care = caretaker(tmp_path, link, lambda: now[0])
    (tmp_path / "home" / "leaving" / "lab" / "r-0a0a.json").write_text("cut o")
    now[0] = 61.0
    link.asked.clear()
    care.look()
    assert link.asked == ["clear", "tidy"]
    assert not (tmp_path / "work" / "runs" / "r-1a1a").exists()
