"""Folders that go away under an agent."""

import shutil

import pytest

from gangline.agent.foothold import Foothold


@pytest.fixture
def held(tmp_path):
    foothold = Foothold()
    folder = tmp_path / "run" / "attempts"
    folder.mkdir(parents=True)
    foothold.hold(folder.parent)
    foothold.hold(folder)
    yield foothold, folder
    foothold.close()


def test_folders_that_stay_are_not_lost(held):
    foothold, folder = held
    (folder / "file").write_text("x")
    assert foothold.find_lost() is None


def test_a_removed_folder_is_lost_although_another_has_taken_its_place(held):
    foothold, folder = held
    shutil.rmtree(folder.parent)
    assert foothold.find_lost() == folder.parent
    folder.mkdir(parents=True)
    assert foothold.find_lost() == folder.parent
    assert foothold.has_lost(folder)
    assert not foothold.has_lost(folder / "never held")


def test_a_moved_folder_is_lost(held):
    foothold, folder = held
    folder.rename(folder.with_name("elsewhere"))
    assert foothold.find_lost() == folder
    foothold.release(folder)
    assert foothold.find_lost() is None


def test_what_never_was_is_not_missed(tmp_path):
    foothold = Foothold()
    foothold.hold(tmp_path / "nowhere")
    assert foothold.find_lost() is None
