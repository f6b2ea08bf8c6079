from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from gangline.rundir.tail import LogFollower, PlainText, read_chunk, read_tail, render_plain


@pytest.mark.parametrize("ending", [b"", b"\n"])
def test_the_last_lines(tmp_path: Path, ending: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"\n".join(b"line %d" % number for number in range(20_000)) + ending)
    assert read_tail(path, 2).data == b"line 19998\nline 19999" + ending
    many = read_tail(path, 15_000)
    assert many.data.startswith(b"line 5000\n")
    assert many.next_offset == many.size
    assert read_tail(path, 50_000).data == path.read_bytes()
    assert read_tail(path, 0).data == b""


def test_the_tail_of_a_missing_and_of_an_empty_log(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for name in ("missing", "empty"):
        chunk = read_tail(tmp_path / name, 5)
        assert (chunk.offset, chunk.data, chunk.size, chunk.cut) == (0, b"", 0, False)


def test_ten_megabytes_without_a_line_end_cost_no_more_than_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes("ü".encode() * 5_000_000 + b"x")
    tracemalloc.start()
    chunk = read_tail(path, 10, limit_bytes=100_000)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 1_000_000
    assert chunk.cut
    assert chunk.next_offset == chunk.size
    assert "\ufffd" not in chunk.text


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


def test_a_follower_sees_each_byte_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    follower = LogFollower(path)
    assert follower.read() == b""
    path.write_bytes("a€".encode()[:2])
    assert follower.read() == b"a"
    assert follower.read() == b""
    assert follower.read_rest() == b"\xe2"
    with path.open("ab") as file:
        file.write(b"more")
    assert follower.read() == b"more"


def test_a_carriage_return_ends_a_piece() -> None:
    assert render_plain(b"10%\r20%\r\r30%\nnext\r\n\r\nlast") == "10%\n20%\n30%\nnext\n\nlast"
    assert render_plain(b"50%\r\x1b[K100%\r\n") == "50%\n100%\n"


def test_control_sequences_are_stripped() -> None:
    raw = b"\x1b[1;31mred\x1b[0m \x1b]0;title\x07\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\ "
    raw += b"\x1b[2A\x1b(B\x07\x08end\ttab\x00\x7f"
    assert render_plain(raw) == "red link end\ttab"


def test_every_split_gives_the_same_plain_text() -> None:
    raw = "a\r\nb\r\x1b[31mü€\x1b[0m\x1b]0;t\x07\r\n\x1b(Bz\n\nend".encode()
    whole = render_plain(raw)
    for first in range(len(raw)):
        plain = PlainText()
        assert plain.feed(raw[:first]) + plain.feed(raw[first:]) + plain.finish() == whole
    plain = PlainText()
    assert "".join(plain.feed(raw[i : i + 1]) for i in range(len(raw))) + plain.finish() == whole


def test_a_long_line_is_cut_once_with_a_note_however_it_comes() -> None:
    plain = PlainText(line_chars=10)
    text = (
        plain.feed(b"x" * 7)
        + plain.feed(b"x" * 7)
        + plain.feed(b"x" * 1000)
        + plain.feed(b"\nshort\n")
        + plain.finish()
    )
    assert text.startswith("x" * 10 + " …")
    assert text.count("longer than 10 characters") == 1
    assert text.endswith("]\nshort\n")


def test_plain_text_of_endless_output_is_bounded_in_memory_and_comes_at_once() -> None:
    plain = PlainText()
    tracemalloc.start()
    assert plain.feed(b"progress") == "progress"
    for _ in range(100):
        plain.feed(b"y" * 100_000)
        plain.feed(b"\x1b]" + b"z" * 100_000)  # a control sequence that never ends
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 5_000_000


def test_bytes_that_are_not_text_are_replaced() -> None:
    assert render_plain(b"caf\xe9 \xff\xfe") == "caf\ufffd \ufffd\ufffd"
