"""However the text of a rank comes in, the same lines are printed, and many at once as one by one."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.cli import logtext
from gangline.cli.logtext import LogPrinter

PLAIN = st.text(st.sampled_from("ab \n\t"), max_size=60)
ANY = st.lists(st.sampled_from(["a", "\n", "\r\n", "word", "é", "\x1b[31m", "\x00"]), max_size=40).map("".join)
CUTS = st.lists(st.integers(0, 60), max_size=6)


def printed(text: str, cuts: list[int], *, labelled: bool) -> str:
    found: list[str] = []
    printer = LogPrinter(found.append, (lambda rank: f"{rank}|") if labelled else None)
    for start, end in pairwise([0, *sorted(cuts), len(text) + 60]):
        place = {"size": len(text), "next_offset": min(end, len(text))}
        piece = {"rank": 7, "text": text[start:end], "complete": False, **place}
        printer.feed(piece)  # type: ignore[arg-type]
    printer.finish()
    return "".join(found)


@settings(max_examples=200, deadline=None)
@given(text=PLAIN, cuts=CUTS)
def test_plain_lines_come_out_as_they_are(text: str, cuts: list[int]) -> None:
    lines = text.split("\n")
    lines = lines if lines[-1] else lines[:-1]
    assert printed(text, cuts, labelled=True) == "".join(f"7|{line}\n" for line in lines)
    assert printed(text, cuts, labelled=False) == "".join(f"{line}\n" for line in lines)


@settings(max_examples=200, deadline=None)
@given(text=ANY, cuts=CUTS)
def test_many_lines_at_once_are_the_lines_one_by_one(text: str, cuts: list[int]) -> None:
    at_once = printed(text, cuts, labelled=True)
    fast, logtext._is_plain = logtext._is_plain, lambda _text: False
    try:
        assert at_once == printed(text, cuts, labelled=True)
    finally:
        logtext._is_plain = fast
