"""Whether an error says that the disk takes no more; databases say it in their own ways."""

from __future__ import annotations

from sqlalchemy.exc import DBAPIError

from gangline.rundir.space import is_full

__all__ = ["says_full"]

_WORDS = (
    "database or disk is full",
    "attempt to write a readonly database",
    "disk i/o error",  # SQLite has no other words where its log cannot grow
    "no space left on device",
    "disk quota exceeded",
)


def says_full(error: BaseException | None) -> bool:
    """True for an OSError or a database's error of that kind, also as the cause of another error."""
    while error is not None:
        if is_full(error):
            return True
        if isinstance(error, DBAPIError) and any(words in str(error.orig).lower() for words in _WORDS):
            return True
        error = error.__cause__
    return False
