"""The version of this code, at no cost at import; a test holds it equal to the package's own.

Standard library only.
"""

from __future__ import annotations

__all__ = ["VERSION", "speaks_same"]

VERSION = "0.1.0"


def speaks_same(one: str, other: str) -> bool:
    """Whether two versions understand each other: their major and minor numbers are equal."""
    return one.split(".")[:2] == other.split(".")[:2]
