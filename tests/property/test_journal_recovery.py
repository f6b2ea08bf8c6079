"""A journal that was cut at any byte goes on, and keeps every record that had been whole."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.rundir.journal import JournalReader, JournalWriter, read_journal

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=100, deadline=None)
@given(lives=st.lists(st.tuples(st.lists(VALUES, max_size=4), st.integers(0, 60)), min_size=1, max_size=5))
def test_whole_records_survive_every_cut(lives: list[tuple[list[object], int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.jsonl"
        expected: list[object] = []
        for values, cut in lives:
            with JournalWriter(path) as journal:
                ends = [(journal.write("v", x=value)["x"], path.stat().st_size) for value in values]
            size = path.stat().st_size
            kept = max(size - cut, size if not ends else ends[0][1] - 1)  # the writer dies within what it wrote
            with path.open("r+b") as file:
                file.truncate(kept)
            expected += [value for value, end in ends if end - 1 <= kept]  # only the line feed may be missing
        with JournalWriter(path) as journal:
            journal.write("end")
        records = read_journal(path)
        assert [record["x"] for record in records[:-1]] == expected
        seqs = [record["seq"] for record in records]
        assert seqs == sorted(set(seqs))


@settings(max_examples=100, deadline=None)
@given(values=st.lists(VALUES, max_size=8), steps=st.lists(st.integers(1, 40), max_size=60), limit=st.integers(1, 64))
def test_a_follower_sees_each_record_once_however_the_file_grows(
    values: list[object], steps: list[int], limit: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        whole, growing = Path(folder) / "whole", Path(folder) / "growing"
        with JournalWriter(whole) as journal:
            for value in values:
                journal.write("v", x=value)
        data = whole.read_bytes()
        reader, seen = JournalReader(growing), []
        for step in [*steps, len(data)]:
            with growing.open("ab") as file:
                file.write(data[growing.stat().st_size :][:step])
            seen += reader.read(limit_bytes=limit)
            reader = JournalReader(growing, reader.offset)
        seen += reader.read_all()
        assert [record["x"] for record in seen] == values
        assert reader.offset == len(data)
