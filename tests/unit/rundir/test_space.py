import errno
from pathlib import Path

import pytest

from gangline.rundir.journal import JournalWriter
from gangline.rundir.space import describe_full, is_full, probe_folder


@pytest.mark.parametrize(
    ("number", "full"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EROFS, True), (5, False)]
)
def test_full_is_told_from_other_trouble(number: int, *, full: bool) -> None:
    assert is_full(OSError(number, "x")) is full


def test_a_value_error_is_no_full_disk() -> None:
    assert not is_full(ValueError("no space"))


def test_what_is_said_names_the_path_and_what_is_free(tmp_path: Path) -> None:
    said = describe_full(tmp_path / "a" / "b", OSError(errno.ENOSPC, "No space left on device"))
    assert said.startswith(f"{tmp_path}/a/b cannot be written: No space left on device (")
    assert said.endswith(" MiB are free)")


def test_a_folder_with_room_is_left_as_it_was(tmp_path: Path) -> None:
    assert probe_folder(tmp_path) == ""
    assert probe_folder(tmp_path / "missing") == ""
    assert not list(tmp_path.iterdir())


def test_a_record_that_is_not_taken_is_a_full_disk(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.symlink_to("/dev/full")
    with JournalWriter(path) as journal, pytest.raises(OSError, match="No space") as caught:
        journal.write("x")
    assert is_full(caught.value)
