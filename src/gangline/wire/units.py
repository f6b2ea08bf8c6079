"""Sizes and durations as people write them: `16GB`, `90m`, `1:30:00`.

Standard library only.
"""

from __future__ import annotations

import math
import re

from gangline.domain.errors import SpecInvalid

__all__ = ["parse_bytes", "parse_duration"]

_BYTES = {
    "b": 1,
    "k": 1024,
    "m": 1024**2,
    "g": 1024**3,
    "t": 1024**4,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
    "kib": 1024,
    "mib": 1024**2,
    "gib": 1024**3,
    "tib": 1024**4,
}
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*")
_CLOCK = re.compile(r"(?:(\d+):)?(\d+):(\d{2})")


def parse_bytes(text: str) -> int:
    """`16GB` is 16 * 1000**3, `16GiB` and `16G` are 16 * 1024**3; `0` is 0.

    Raises:
        SpecInvalid: it is no size, or carries no unit (16 of what?).
    """
    if text.strip() == "0":
        return 0
    found = _SIZE.fullmatch(text.strip().lower())
    if found is None or found[2] not in _BYTES:
        raise SpecInvalid(f"`{text}` is not a size", fix="Write a number and a unit: 512MB, 16GB, 64GiB.")
    return int(float(found[1]) * _BYTES[found[2]])


def parse_duration(text: str) -> float:
    """Seconds in `90`, `90s`, `1.5h`, `1h30m`, `2d`, `30:00` (minutes) or `1:30:00` (hours).

    Raises:
        SpecInvalid: it is no duration.
    """
    plain = text.strip().lower()
    if clock := _CLOCK.fullmatch(plain):
        hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        return float(hours * 3600 + minutes * 60 + seconds)
    if re.fullmatch(r"\d+(\.\d+)?", plain):
        return float(plain)
    if plain and re.fullmatch(f"(?:{_PART.pattern})+", plain):
        return math.fsum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(plain))
    raise SpecInvalid(f"`{text}` is not a duration", fix="Write 90s, 45m, 1h30m, 2d or 1:30:00.")
