"""The version of this code, at no cost at import; a test holds it equal to the package's own.

Standard library only.
"""

from __future__ import annotations

__all__ = ["VERSION", "digest_code", "speaks_same"]

VERSION = "0.1.0"


def speaks_same(one: str, other: str) -> bool:
    """Whether two versions understand each other: their major and minor numbers are equal."""
    return one.split(".")[:2] == other.split(".")[:2]


def digest_code() -> str:
    """A digest of the code that decides what client and server say to each other; about a millisecond."""
    import hashlib  # noqa: PLC0415 - at no cost at import
    from pathlib import Path  # noqa: PLC0415 - the same

    package, found = Path(__file__).parent.parent, hashlib.sha256()
    for path in sorted([*package.glob("domain/*.py"), *package.glob("wire/*.py")]):
        found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]
