from __future__ import annotations

import pytest

from gangline.domain.errors import SpecInvalid
from gangline.wire.units import parse_bytes, parse_duration


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("16GB", 16 * 10**9),
        ("16GiB", 16 * 2**30),
        ("16G", 16 * 2**30),
        ("1.5 kb", 1500),
        ("7b", 7),
        (" 2TB ", 2 * 10**12),
    ],
)
def test_sizes(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "16", "GB", "-1GB", "1 000MB", "1PBB", "1e3GB", "16 G B"])
def test_what_is_no_size(text):
    with pytest.raises(SpecInvalid, match=r"not a size.*16GB"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("0", 0),
        ("1.5", 1.5),
        ("90s", 90),
        ("90m", 5400),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("2d", 172800),
        ("500ms", 0.5),
        ("1:30:00", 5400),
        ("30:00", 1800),
    ],
)
def test_durations(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-5m", "5x", "1:2:3:4", "1:5", "m", "1e3", "inf", "nan"])
def test_what_is_no_duration(text):
    with pytest.raises(SpecInvalid, match=r"not a duration.*90s"):
        parse_duration(text)
