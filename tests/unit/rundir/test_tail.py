from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from gangline.rundir.tail import find_line_start, find_tail, read_chunk, read_kept


@pytest.mark.parametrize("ending", [b"", b"\n"])
def test_the_last_lines(tmp_path: Path, ending: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"\n".join(b"line %d" % number for number in range(20_000)) + ending)
    whole = path.read_bytes()
    assert whole[find_tail(path, 2) :] == b"line 19998\nline 19999" + ending
    assert whole[find_tail(path, 15_000) :].startswith(b"line 5000\n")
    assert find_tail(path, 50_000) == 0
    assert find_tail(path, 0) == len(whole)


def test_the_tail_of_a_missing_and_of_an_empty_log(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert find_tail(tmp_path / "missing", 5) == find_tail(tmp_path / "empty", 5) == 0


def test_ten_megabytes_without_a_line_end_cost_no_more_than_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes("ü".encode() * 5_000_000 + b"x")
    tracemalloc.start()
    offset = find_tail(path, 10, limit_bytes=100_000)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 1_000_000
    tail = path.read_bytes()[offset:]
    assert 100_000 - 4 < len(tail) <= 100_000
    tail.decode("utf-8")


def test_the_beginning_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\ntwo\n" + b"x" * 200_000)
    assert [find_line_start(path, offset) for offset in (0, 2, 3, 4, 6, 8, 100)] == [0, 0, 0, 4, 4, 8, 8]
    assert find_line_start(path, 150_000) == 150_000


def test_chunks_end_between_characters_and_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("aä€😀" * 50)
    offset, text = 0, ""
    while (chunk := read_chunk(path, offset, limit_bytes=7)).data:
        text += chunk.data.decode("utf-8")
        offset = chunk.next_offset
    assert text == "aä€😀" * 50


def test_bytes_that_are_not_utf8_are_passed_on(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(bytes(range(128, 256)) * 3)
    offset, data = 0, b""
    while (chunk := read_chunk(path, offset, limit_bytes=5)).data:
        data += chunk.data
        offset = chunk.next_offset
    assert (data + path.read_bytes()[offset:]) == path.read_bytes()
    assert len(data) >= len(path.read_bytes()) - 3


def test_a_chunk_past_the_end_is_empty_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"abc")
    assert (read_chunk(path, 99).offset, read_chunk(path, 99).data) == (3, b"")


def test_a_half_character_waits_until_nothing_more_can_come(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert read_chunk(path, 0).data == b""
    path.write_bytes("a€".encode()[:2])
    assert read_chunk(path, 0).data == b"a"
    assert read_chunk(path, 1).data == b""
    assert read_chunk(path, 0, final=True).data == b"a\xe2"
    assert b"".join(read_kept(path)) == b"a\xe2"


def test_all_that_a_log_holds_between_two_offsets(tmp_path: Path) -> None:
    path = tmp_path / "log"
    data = "aä€😀".encode() * 100_000
    path.write_bytes(data)
    assert b"".join(read_kept(path)) == data
    assert b"".join(read_kept(path, 17, 600_001)) == data[17:600_001]
    assert b"".join(read_kept(tmp_path / "missing")) == b""
