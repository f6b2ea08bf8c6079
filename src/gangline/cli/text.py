"""Values as people read them: durations, sizes, ages, numbers, and text that cannot harm a terminal.

Pure, standard library only.
"""

from __future__ import annotations

import math
import time
import unicodedata
from collections.abc import Sequence

__all__ = [
    "cell_width",
    "clip",
    "pad",
    "render_age",
    "render_clock",
    "render_count",
    "render_duration",
    "render_metric",
    "render_number",
    "render_size",
    "render_step",
    "visible",
    "visible_order",
    "wrap",
]

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86400
_UNSAFE = frozenset({"Cc", "Cs", "Zl", "Zp"})
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_VISIBLE_ORDER = {ord(char): ascii(char)[1:-1] for char in _BIDI}
_ZERO_WIDTH = frozenset({"Mn", "Me", "Cf"})
_SIZE_UNITS = ("kB", "MB", "GB", "TB", "PB")


def visible(text: str, *, multiline: bool = False) -> str:
    r"""The text with everything that a terminal would obey turned into an escape that can be seen (`\x1b`, `\n`).

    Args:
        multiline: line feeds and tabs may stay.
    """
    if text.isascii() and text.isprintable():
        return text
    kept = "\n\t" if multiline else ""
    return "".join(_escape(char) if _is_unsafe(char) and char not in kept else char for char in text)


def visible_order(text: str) -> str:
    """The text with marks that turn the order of letters around as escapes that can be seen; all else stays."""
    return text if text.isascii() else text.translate(_VISIBLE_ORDER)


def cell_width(text: str) -> int:
    """Columns that the text takes in a terminal: two for wide characters, none for combining ones."""
    if text.isascii():
        return len(text)
    return sum(map(_char_width, text))


def clip(text: str, width: int, *, mark: str = "…") -> str:
    """The text in at most `width` columns; what was cut is shown by `mark`."""
    if cell_width(text) <= width:
        return text
    room = width - len(mark)
    if room <= 0:
        return mark[:width]
    kept: list[str] = []
    for char in text:
        room -= _char_width(char)
        if room < 0:
            break
        kept.append(char)
    return "".join(kept).rstrip() + mark


def pad(text: str, width: int, *, right: bool = False) -> str:
    """The text filled with spaces to `width` columns; `right` puts them before it."""
    spaces = " " * max(0, width - cell_width(text))
    return spaces + text if right else text + spaces


def wrap(text: str, width: int) -> list[str]:
    """The text in lines of at most `width` columns, broken at spaces; a word that is longer stays whole."""
    lines: list[str] = []
    current = ""
    for word in text.split():
        joined = f"{current} {word}" if current else word
        if current and cell_width(joined) > width:
            lines.append(current)
            current = word
        else:
            current = joined
    return [*lines, current] if current else lines


def render_duration(seconds: float | None) -> str:
    """`0.4s`, `12s`, `3m 05s`, `2h 07m`, `4d 3h`; `-` when it is not known."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    seconds = max(0.0, seconds)
    if seconds < 10:  # noqa: PLR2004 - below ten seconds a tenth still says something
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < _MINUTE_S:
        return f"{whole}s"
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S}m {whole % _MINUTE_S:02d}s"
    if whole < _DAY_S:
        return f"{whole // _HOUR_S}h {whole % _HOUR_S // _MINUTE_S:02d}m"
    return f"{whole // _DAY_S}d {whole % _DAY_S // _HOUR_S}h"


def render_age(then: float | None, now: float) -> str:
    """How long ago, in one unit: `5s`, `3m`, `7h`, `12d`."""
    if then is None:
        return "-"
    seconds = max(0, int(now - then))
    for limit, size, unit in ((_MINUTE_S, 1, "s"), (_HOUR_S, _MINUTE_S, "m"), (_DAY_S, _HOUR_S, "h")):
        if seconds < limit:
            return f"{seconds // size}{unit}"
    return f"{seconds // _DAY_S}d"


def render_clock(moment: float | None) -> str:
    """Local time of day: `14:03:22`."""
    return "-" if moment is None else time.strftime("%H:%M:%S", time.localtime(moment))


def render_size(size_bytes: float | None) -> str:
    """`512 B`, `1.2 MB`: decimal units, as disks are sold."""
    if size_bytes is None:
        return "-"
    value = float(size_bytes)
    if value < 1000:  # noqa: PLR2004 - the base of the units
        return f"{value:.0f} B"
    for unit in _SIZE_UNITS:
        value /= 1000
        if value < 999.95 or unit == _SIZE_UNITS[-1]:  # noqa: PLR2004 - what would round to 1000.0
            return f"{value:.1f} {unit}"
    raise AssertionError  # pragma: no cover - the last unit always returns


def render_number(value: float | None) -> str:
    """Four significant digits, no exponent where it can be helped: `0.001234`, `12.5`, `3.2e-09`."""
    if value is None:
        return "-"
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if value == int(value) and abs(value) < 1e7:  # noqa: PLR2004 - more digits than anybody reads
        return str(int(value))
    return f"{value:,.0f}" if 10_000 <= abs(value) < 1e9 else f"{value:.4g}"  # noqa: PLR2004


def render_metric(value: float | None) -> str:
    """A value that training code logged; null stands for NaN and infinities, which JSON has no form for."""
    return "not finite" if value is None else render_number(value)


def render_step(step: int | None, total: int | None) -> str:
    """`120/200 60%`, `120`, or `-`."""
    if step is None:
        return "-"
    if not total:
        return str(step)
    return f"{step}/{total} {min(100, 100 * step // total)}%"


def render_count(number: int, noun: str, plural: str = "") -> str:
    """`1 file`, `3 files`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def join_words(words: Sequence[str], *, last: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}" if words else ""


def _is_unsafe(char: str) -> bool:
    return unicodedata.category(char) in _UNSAFE or char in _BIDI


def _escape(char: str) -> str:
    return {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(char) or ascii(char)[1:-1]


def _char_width(char: str) -> int:
    if char.isascii():
        return 1
    if unicodedata.category(char) in _ZERO_WIDTH:
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
