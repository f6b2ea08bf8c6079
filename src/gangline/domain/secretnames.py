"""Which names say that a value is a secret. Pure; standard library only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

__all__ = ["looks_secret", "secret_values", "secret_words"]

_ENDINGS = (
    "TOKEN",
    "KEY",
    "SECRET",
    "PASSWORD",
    "PASSWD",
    "PASSPHRASE",
    "CREDENTIAL",
    "CREDENTIALS",
    "AUTH",
    "AUTHORIZATION",
    "COOKIE",
)
_WORDS = frozenset({"PAT", "PASS", "SECRETS", "PASSWORDS"})
_PARTS = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])")


def looks_secret(name: str) -> bool:
    """Whether a name says that its value is nobody else's business: `HF_TOKEN`, `apiKey`, `--db-password`."""
    parts = [part.upper() for part in _PARTS.split(name) if part]
    if len(parts) > 1 and parts[-1] == "PWD" and parts[-2] != "OLD":
        return True
    return any(part in _WORDS or part.endswith(_ENDINGS) for part in parts)


def secret_values(*tables: Mapping[str, str]) -> list[str]:
    """The values of those variables whose names look secret."""
    return [value for table in tables for name, value in table.items() if looks_secret(name)]


def secret_words(words: Sequence[str]) -> Iterator[str]:
    """The values behind telling names in a command: of `--token abc`, `--token=abc` and `db.pass=abc`."""
    for before, word in zip(["", *words], words, strict=False):
        name, given, value = word.partition("=")
        if given and looks_secret(name):
            yield value
        elif before.startswith("-") and "=" not in before and looks_secret(before) and not word.startswith("-"):
            yield word
