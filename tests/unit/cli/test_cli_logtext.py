from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.cli.logtext import LineAssembler, LogPrinter, strip_controls


def chunk(text: str, rank: int = 0, *, complete: bool = False) -> dict[str, object]:
    return {"rank": rank, "attempt": 0, "offset": 0, "next_offset": 0, "size": 0, "text": text, "complete": complete}


def printed(*chunks: dict[str, object], labels: bool = False, raw: bool = False) -> str:
    parts: list[str] = []
    printer = LogPrinter(parts.append, (lambda rank: f"{rank} | ") if labels else None, raw=raw)
    for item in chunks:
        printer.feed(item)
    printer.finish()
    return "".join(parts)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b[2K\x1b[1Aup", "up"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPq#0\x1b\\sixel", "sixel"),
        ("\x1b(Bx\x1b7y\x1bc", "xy"),
        ("\x9b31mred", "red"),
        ("a\x00b\x07c\x7f\x85", "abc"),
        ("tab\tand\nline", "tab\tand\nline"),
    ],
)
def test_control_codes_are_taken_out(text: str, plain: str):
    assert strip_controls(text) == (plain, "")


@given(st.text(alphabet="ab\x1b[]31;m\x07\\\x9b\r\n\x00", max_size=60), st.integers(0, 60))
def test_nothing_that_a_terminal_obeys_comes_out_however_it_is_cut(text: str, cut: int):
    out = printed(chunk(text[:cut]), chunk(text[cut:]))
    assert not set(out) & {"\x1b", "\x9b", "\x07", "\x00", "\r"}


def test_an_escape_in_two_chunks_is_one():
    assert printed(chunk("a\x1b[3"), chunk("1mb\n")) == "ab\n"


def test_lines_of_several_ranks_are_labelled_whole():
    out = printed(chunk("one "), chunk("eins\n", 1), chunk("more\n"), chunk("open", 1, complete=True), labels=True)
    assert out == "1 | eins\n0 | one more\n1 | open\n"


def test_a_single_rank_is_shown_at_once_even_within_a_line():
    parts: list[str] = []
    printer = LogPrinter(parts.append)
    printer.feed(chunk("Proceed? "))
    assert "".join(parts) == "Proceed? "
    printer.feed(chunk("yes\nnext\n"))
    assert "".join(parts) == "Proceed? yes\nnext\n"


def test_only_the_newest_state_of_a_progress_bar_is_shown():
    assert printed(chunk("".join(f"{i}%\r" for i in range(100))), chunk("100%\ndone\n")) == "99%\n100%\ndone\n"
    assert printed(chunk("\r 50%\r100%\n")) == "100%\n"


@pytest.mark.parametrize("pieces", [["a\r\nb\r\n"], ["a\r", "\nb\r\n"], ["a", "\r\n", "b\r\n"]])
def test_line_ends_of_windows_are_line_ends(pieces: list[str]):
    assert printed(*map(chunk, pieces)) == "a\nb\n"


def test_memory_stays_bounded_without_line_ends():
    assembler = LineAssembler()
    total = 0
    for _ in range(160):
        total += sum(len(piece.text) for piece in assembler.feed("x" * 65_536))
        assert len(assembler.pending) <= 65_536
    total += sum(len(piece.text) for piece in assembler.finish())
    assert total == 160 * 65_536


def test_no_byte_of_a_long_line_is_lost_on_the_way():
    assert printed(*[chunk("y" * 50_000) for _ in range(9)]) == "y" * 450_000 + "\n"


def test_raw_text_passes_as_it_is():
    assert printed(chunk("\x1b[31ma\rb"), raw=True) == "\x1b[31ma\rb"
    assert printed(chunk("\x1b[31ma\n"), raw=True, labels=True) == "0 | \x1b[31ma\n"


def test_marks_that_turn_the_order_of_letters_around_are_shown():
    marks = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    assert printed(chunk(f"loss {marks}1.0 \u05d0\u05d1 \U0001f415\n")) == (
        "loss " + marks.encode("ascii", "backslashreplace").decode() + "1.0 \u05d0\u05d1 \U0001f415\n"
    )
    assert printed(chunk("a\u202eb\n"), labels=True) == "0 | a\\u202eb\n"
    assert printed(chunk("a\u202eb\n"), raw=True) == "a\u202eb\n"


BAR = "".join(f"\r{number:4d}/5000 |{'#' * (number // 100):<50}| END" for number in range(5_001))


def pages(text: str, size: int) -> list[dict[str, object]]:
    """As a server sends a log that is there already."""
    cuts = range(0, len(text), size)
    return [{**chunk(text[at : at + size]), "next_offset": at + size, "size": len(text)} for at in cuts]


@pytest.mark.parametrize("labels", [False, True])
@pytest.mark.parametrize("size", [65_536, 1_000, 7])
def test_a_progress_bar_is_not_torn_where_pages_end(size: int, labels: bool):  # noqa: FBT001 - a parameter of the test
    parts: list[str] = []
    printer = LogPrinter(parts.append, (lambda rank: f"{rank} | ") if labels else None, live=False)
    for page in pages(f"{BAR}\n{BAR}", size):
        printer.feed(page)  # type: ignore[arg-type]
    printer.finish()
    final = f"{'0 | ' if labels else ''}5000/5000 |{'#' * 50}| END\n"
    assert "".join(parts) == 2 * final


def test_a_followed_progress_bar_shows_whole_states_however_its_pages_are_cut():
    out = printed(*pages(f"{BAR}\ndone\n", 65_536))
    lines = out.splitlines()
    assert all(line.endswith("END") for line in lines[:-1])
    assert lines[-2:] == [f"5000/5000 |{'#' * 50}| END", "done"]


def test_memory_stays_bounded_by_a_progress_bar_that_never_ends():
    assembler = LineAssembler()
    for page in pages(BAR * 20, 65_536):
        assert assembler.feed(str(page["text"]), behind_bytes=1 << 30) == []
        assert len(assembler.pending) <= 200
    assert [piece.text[:9] for piece in assembler.finish()] == ["5000/5000"]


def test_a_bar_that_ends_with_a_carriage_return_keeps_its_last_state():
    parts: list[str] = []
    printer = LogPrinter(parts.append, live=False)
    for page in pages("  0%\r 50%\r100%\r", 6):
        printer.feed(page)  # type: ignore[arg-type]
    printer.finish()
    assert "".join(parts) == "100%\n"
