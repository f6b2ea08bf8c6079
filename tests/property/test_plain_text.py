"""However a log's bytes are cut into pieces, people read the same text, and no character of the raw log is lost."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.rundir.tail import LogFollower, PlainText, read_tail, render_plain

OUTPUT = st.lists(
    st.sampled_from([b"\n", b"\r", b"\r\n", b"x", b"word ", "ü€😀".encode()])
    | st.sampled_from([b"\x1b[31m", b"\x1b[2K", b"\x1b]0;t\x07", b"\x1b", b"["])
    | st.binary(max_size=4),
    max_size=40,
).map(b"".join)


@settings(max_examples=300, deadline=None)
@given(raw=OUTPUT, cuts=st.lists(st.integers(0, 100), max_size=6))
def test_pieces_do_not_change_the_plain_text(raw: bytes, cuts: list[int]) -> None:
    plain = PlainText(line_chars=20)
    edges = [0, *sorted(cuts), len(raw) + 100]
    text = "".join(plain.feed(raw[start:end]) for start, end in pairwise(edges)) + plain.finish()
    assert text == render_plain(raw, line_chars=20)
    assert "\r" not in text
    assert "\x1b" not in text


@settings(max_examples=200, deadline=None)
@given(raw=OUTPUT, limit=st.integers(1, 20))
def test_a_follower_loses_no_byte(raw: bytes, limit: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        path.write_bytes(raw)
        follower, seen = LogFollower(path), b""
        while piece := follower.read_rest(limit_bytes=limit):
            seen += piece
        assert seen == raw


@settings(max_examples=200, deadline=None)
@given(raw=OUTPUT, count=st.integers(0, 10), limit=st.integers(1, 60))
def test_a_tail_is_the_end_of_the_log_and_has_the_lines_that_were_asked_for(raw: bytes, count: int, limit: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        path.write_bytes(raw)
        lines = raw.split(b"\n")
        ended = raw.endswith(b"\n")
        pieces = [line + b"\n" for line in lines[:-1]] + ([] if ended else [lines[-1]])
        wanted = b"".join(pieces[-count:]) if count else b""
        chunk = read_tail(path, count, limit_bytes=limit)
        assert raw.endswith(chunk.data)
        assert wanted.endswith(chunk.data)
        assert len(chunk.data) <= limit
        assert chunk.data == wanted or (chunk.cut and len(chunk.data) >= min(limit, len(wanted)) - 3)
