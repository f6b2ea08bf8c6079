from __future__ import annotations

import pytest

from gangline.cli.text import (
    cell_width,
    clip,
    join_words,
    pad,
    render_age,
    render_duration,
    render_number,
    render_size,
    render_step,
    visible,
    wrap,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\x00\x07\x7f\x9b", "\\x00\\x07\\x7f\\x9b"),
        ("name \u202egnp.exe", "name \\u202egnp.exe"),
        ("line\u2028next", "line\\u2028next"),
        ("half \ud800", "half \\ud800"),
        ("日本 🐕 é", "日本 🐕 é"),
        ("<img src=x onerror=alert(1)>", "<img src=x onerror=alert(1)>"),
    ],
)
def test_what_a_terminal_would_obey_can_be_seen(text: str, shown: str):
    assert visible(text) == shown


def test_multiline_text_keeps_its_lines():
    assert visible("a\n\tb\x1b", multiline=True) == "a\n\tb\\x1b"


@pytest.mark.parametrize(
    ("text", "width"), [("abc", 3), ("日本", 4), ("e\u0301", 1), ("🐕", 2), ("a\u200db", 2), ("", 0)]
)
def test_cell_width(text: str, width: int):
    assert cell_width(text) == width


@pytest.mark.parametrize("width", range(8))
def test_clipped_text_never_exceeds_its_width(width: int):
    for text in ("abcdefghij", "日本語日本語", "a" * 200):
        assert cell_width(clip(text, width)) <= width


def test_clip_says_that_it_cut():
    assert clip("abcdef", 4) == "abc…"
    assert clip("abcdef", 5, mark="...") == "ab..."
    assert clip("abc", 3) == "abc"


def test_pad_counts_columns():
    assert pad("日本", 6) == "日本  "
    assert pad("7", 3, right=True) == "  7"


def test_wrap_keeps_long_words_whole():
    assert wrap("a bb ccc /a/very/long/path d", 6) == ["a bb", "ccc", "/a/very/long/path", "d"]
    assert wrap("", 10) == []


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "-"),
        (float("nan"), "-"),
        (-3, "0.0s"),
        (0.44, "0.4s"),
        (12.4, "12s"),
        (59.6, "1m 00s"),
        (185, "3m 05s"),
        (7_650, "2h 07m"),
        (356_400, "4d 3h"),
    ],
)
def test_durations(seconds: float | None, shown: str):
    assert render_duration(seconds) == shown


@pytest.mark.parametrize(
    ("age", "shown"), [(-5, "0s"), (0, "0s"), (59, "59s"), (60, "1m"), (3600, "1h"), (90_000, "1d")]
)
def test_ages(age: float, shown: str):
    assert render_age(1000.0, 1000.0 + age) == shown
    assert render_age(None, 0) == "-"


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (None, "-"),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_960, "1.0 MB"),
        (5e9, "5.0 GB"),
        (7e18, "7000.0 PB"),
    ],
)
def test_sizes(size: float | None, shown: str):
    assert render_size(size) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (3.0, "3"),
        (0.00123456, "0.001235"),
        (12345.6, "12,346"),
        (3.2e-9, "3.2e-09"),
        (1e300, "1e+300"),
    ],
)
def test_numbers(value: float | None, shown: str):
    assert render_number(value) == shown


@pytest.mark.parametrize(
    ("step", "total", "shown"),
    [(None, 10, "-"), (3, None, "3"), (3, 0, "3"), (5, 10, "5/10 50%"), (12, 10, "12/10 100%")],
)
def test_steps(step: int | None, total: int | None, shown: str):
    assert render_step(step, total) == shown


def test_words_are_joined_as_people_do():
    assert [join_words(words) for words in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == [
        "",
        "a",
        "a and b",
        "a, b and c",
    ]
