"""Whether an error says that a database is damaged; not that it is busy, full, or not to be read at the moment."""

from __future__ import annotations

import sqlite3

__all__ = ["says_damaged"]

_WORDS = ("malformed", "file is not a database")


def says_damaged(error: BaseException | None) -> bool:
    """True for SQLite's words about a file that is none of its own any more."""
    return isinstance(error, sqlite3.DatabaseError) and any(words in str(error).lower() for words in _WORDS)
