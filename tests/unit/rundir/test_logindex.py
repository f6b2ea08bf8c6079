from __future__ import annotations

import os
from pathlib import Path

from gangline.rundir.logindex import RECORD_BYTES, IndexReader, IndexWriter

T0 = 1_700_000_000.0


def filled(path: Path, count: int = 100) -> IndexReader:
    writer = IndexWriter(path)
    for second in range(count):
        assert writer.note((second + 1) * 100, T0 + second)
    return IndexReader(path)


def test_offsets_by_time_hold_all_that_was_written_then(tmp_path: Path) -> None:
    reader = filled(tmp_path / "i")
    assert reader.offset_at(T0 - 1) == 0
    assert reader.offset_at(T0 + 5) == 600
    assert reader.offset_at(T0 + 5.5) == 600
    assert reader.offset_at(T0 + 1000) == 10_000
    assert reader.offset_after(T0 + 5) == 600
    assert reader.offset_after(T0 + 5.5) == 700
    assert reader.offset_after(T0 + 1000) is None


def test_time_by_offset(tmp_path: Path) -> None:
    reader = filled(tmp_path / "i")
    assert reader.time_at(0) == T0
    assert reader.time_at(100) == T0 + 1
    assert reader.time_at(10_000) is None
    assert reader.last() == (T0 + 99, 10_000)


def test_a_missing_index_is_an_empty_one(tmp_path: Path) -> None:
    reader = IndexReader(tmp_path / "none")
    assert (reader.offset_at(T0), reader.offset_after(T0), reader.time_at(0), reader.last()) == (0, None, None, None)


def test_notes_come_at_most_once_an_interval_and_only_when_the_log_grew(tmp_path: Path) -> None:
    writer = IndexWriter(tmp_path / "i", interval_s=1.0)
    assert not writer.note(0, T0)
    assert writer.note(10, T0)
    assert not writer.note(20, T0 + 0.5)
    assert not writer.note(10, T0 + 5)
    assert writer.note(20, T0 + 6)


def test_every_cut_of_the_file_leaves_the_records_before_it_and_room_for_more(tmp_path: Path) -> None:
    filled(tmp_path / "whole", 5)
    whole = (tmp_path / "whole").read_bytes()
    for length in range(len(whole)):
        path = tmp_path / "i"
        path.write_bytes(whole[:length])
        records = length // RECORD_BYTES
        assert IndexReader(path).offset_at(T0 + 50) == records * 100
        assert IndexWriter(path).note(9999, T0 + 60)
        reader = IndexReader(path)
        assert reader.last() == (T0 + 60, 9999)
        mended = (length + 1) // RECORD_BYTES  # a record that lacked its line feed alone is whole again
        assert reader.offset_at(T0 + 50) == mended * 100
        assert path.stat().st_size % RECORD_BYTES == 0


def test_damage_in_the_middle_makes_answers_coarser_only(tmp_path: Path) -> None:
    filled(tmp_path / "i", 20)
    data = bytearray((tmp_path / "i").read_bytes())
    data[8 * RECORD_BYTES : 12 * RECORD_BYTES] = b"\x00" * (4 * RECORD_BYTES)
    (tmp_path / "i").write_bytes(data)
    reader = IndexReader(tmp_path / "i")
    assert reader.offset_at(T0 + 9.5) == 800
    assert reader.offset_at(T0 + 3.5) == 400
    assert reader.offset_at(T0 + 15.5) == 1600


def test_a_clock_that_is_set_back_keeps_the_order(tmp_path: Path) -> None:
    writer = IndexWriter(tmp_path / "i")
    writer.note(10, T0)
    assert writer.note(20, T0 - 3600)
    assert IndexReader(tmp_path / "i").last() == (T0, 20)


def test_the_folder_is_made_once(tmp_path: Path, monkeypatch) -> None:
    made = []
    mkdir = Path.mkdir
    monkeypatch.setattr(Path, "mkdir", lambda path, **keys: made.append(path) or mkdir(path, **keys))
    writer = IndexWriter(tmp_path / "a" / "log.index", interval_s=0.0)
    for number in range(1, 9):
        assert writer.note(number, float(number))
    assert made[0] == tmp_path / "a"
    assert len(made) <= 2


def test_a_new_writer_goes_on(tmp_path: Path) -> None:
    filled(tmp_path / "i", 3)
    writer = IndexWriter(tmp_path / "i")
    assert not writer.note(300, T0 + 50)
    assert writer.note(301, T0 + 50)


def test_times_of_many_bytes_are_those_of_each(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "log.index"
    writer = IndexWriter(path, interval_s=0.0)
    for number in range(1, 200):
        assert writer.note(10 * number, float(number))
    reader = IndexReader(path)
    offsets = [*range(0, 2200, 3), 5, 1985, 0]
    alone = [reader.time_at(offset) for offset in offsets]
    assert alone[:4] == [1.0, 1.0, 1.0, 1.0]
    assert (reader.time_at(1989), reader.time_at(1990)) == (199.0, None)
    opened = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda *args: opened.append(args[0]) or real(*args))
    assert reader.times_at(offsets) == alone
    assert opened == [path]
    assert IndexReader(tmp_path / "none").times_at([1, 2]) == [None, None]
