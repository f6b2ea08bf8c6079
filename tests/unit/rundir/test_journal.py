from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gangline.rundir.journal import JournalReader, JournalWriter, read_journal


def test_records_are_numbered_and_go_on_after_a_reopening(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "events.jsonl"
    with JournalWriter(path) as journal:
        journal.write("a", x=1)
        journal.write("b", text="zwei\nlines ü \ud800")
    with JournalWriter(path) as journal:
        assert journal.write("c")["seq"] == 2
    records = read_journal(path)
    assert [(record["seq"], record["kind"]) for record in records] == [(0, "a"), (1, "b"), (2, "c")]
    assert records[0]["t"] > 1e9
    assert records[0]["m"] > 0
    assert records[1]["text"].startswith("zwei\nlines ü")


@pytest.mark.parametrize("torn", ['{"seq": 1, "kind"', '{"seq": 1, "kind": "b"}', "\x00\x00"])
def test_a_torn_line_is_ended_by_the_next_writer(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "j"
    with JournalWriter(path) as journal:
        journal.write("a")
    with path.open("a") as file:
        file.write(torn)
    assert [record["kind"] for record in read_journal(path)] == ["a"]
    with JournalWriter(path) as journal:
        journal.write("z")
    kinds = [record["kind"] for record in read_journal(path)]
    assert kinds[0] == "a"
    assert kinds[-1] == "z"
    seqs = [record["seq"] for record in read_journal(path)]
    assert seqs == sorted(set(seqs))


def test_numbers_go_on_over_a_long_stretch_without_records(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_bytes(b'{"seq": 41}\n' + b"garbage\n" * 50_000)
    with JournalWriter(path) as journal:
        assert journal.write("a")["seq"] == 42


def test_a_follower_gets_each_record_once_and_waits_for_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "j"
    reader = JournalReader(path)
    assert reader.read() == []
    path.write_bytes(b'{"n": 1}\n{"n": 2')
    assert reader.read() == [{"n": 1}]
    assert reader.read() == []
    with path.open("ab") as file:
        file.write(b'2}\nnonsense\n\n[1]\n{"n": 3}\n')
    assert reader.read() == [{"n": 22}, {"n": 3}]
    assert reader.skipped == 2
    again = JournalReader(path, reader.offset)
    assert again.read() == []


def test_a_line_longer_than_the_limit_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_text(json.dumps({"x": "y" * 10_000}) + "\n" + '{"n": 1}\n')
    reader = JournalReader(path)
    records = reader.read(limit_bytes=16) + reader.read_all()
    assert records == [{"x": "y" * 10_000}, {"n": 1}]


def test_a_stretch_of_garbage_is_not_the_end(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_bytes(b"x\n" * 1000 + b'{"n": 1}\n')
    assert JournalReader(path).read(limit_bytes=10) == [{"n": 1}]


def test_a_journal_that_became_shorter_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_bytes(b'{"n": 1}\n')
    assert JournalReader(path, 100).read() == []


def test_values_without_a_json_form_become_text(tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "j") as journal:
        journal.write("a", path=tmp_path)
    assert read_journal(tmp_path / "j")[0]["path"] == str(tmp_path)


def test_a_full_disk_is_an_error_and_the_journal_goes_on_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "j"
    with JournalWriter(path) as journal:
        real = os.write
        monkeypatch.setattr("gangline.rundir.journal.os.write", lambda fd, data: real(fd, data[:5]))
        with pytest.raises(OSError, match="part"):
            journal.write("a")
        monkeypatch.undo()
        journal.write("b")
    assert [(record["seq"], record["kind"]) for record in read_journal(path)] == [(0, "b")]
