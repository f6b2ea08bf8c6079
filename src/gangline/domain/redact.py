"""Secrets out of texts and values that are to be handed on. Pure; standard library only.

What is taken for a secret: the values of variables and keys whose names say so, wherever they stand; tokens of known
forms; what stands between `://` and `@` in a URL; private keys. Rather too much is removed than too little.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

__all__ = ["REMOVED", "Redactor", "looks_secret", "secret_values"]

REMOVED = "[removed]"
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
_LEAST_CHARS = 6
"""Shorter values are removed where they stand, but not looked for elsewhere: they would be found in every word."""
_VARIABLES = frozenset({"env", "inherited_env", "variables"})
"""Tables whose keys are names of variables."""
_PLAIN_KEYS = frozenset({"key", "keys"})
_NAME = r"(?:token|secret|passw(?:or)?d|passphrase|api[_-]?key|access[_-]?key|private[_-]?key|credentials?)"
_VALUE = r"""(?:\\?"[^"\n]*"|\\?'[^'\n]*'|[^\s,;"'}\])]{4,})"""
_FORMS = (
    (r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)", REMOVED),
    (r"\A[A-Za-z0-9+/=\s]*-----END [A-Z0-9 ]*PRIVATE KEY-----", REMOVED),
    (r"""(?<=://)[^\s/"'<>]+(?=@)""", REMOVED),
    (r"\beyJ[\w-]{6,}\.[\w-]{6,}\.[\w-]*", REMOVED),
    (r"\b(?:AKIA|ASIA|AGPA|AIDA|AROA)[0-9A-Z]{16}\b", REMOVED),
    (r"\b(?:gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,})", REMOVED),
    (r"\bhf_[A-Za-z0-9]{16,}", REMOVED),
    (r"\b(?:sk|pk|rk)[-_](?:[A-Za-z0-9]+[-_])*[A-Za-z0-9_-]{16,}", REMOVED),
    (r"\bxox[abeoprs]-[\w-]{8,}", REMOVED),
    (r"\bAIza[\w-]{30,}", REMOVED),
    (r"(?i)\b(bearer|basic)(\s+)[\w.~+/=-]{8,}", rf"\1\2{REMOVED}"),
    (rf"(?i)(--?[\w-]*{_NAME}\s+)(?!-){_VALUE}", rf"\1{REMOVED}"),
    (rf"(?i)([\w-]*{_NAME}\\?[\"']?\s*[=:]\s*)(?!\[removed\]){_VALUE}", rf"\1{REMOVED}"),
    (rf"(\b[A-Z][A-Z0-9_]*(?:KEY|AUTH|PASS|PAT)\\?[\"']?\s*[=:]\s*)(?!\[removed\]){_VALUE}", rf"\1{REMOVED}"),
)
_PATTERNS = tuple((re.compile(pattern, re.DOTALL), by) for pattern, by in _FORMS)
_PARTS = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])")


def looks_secret(name: str) -> bool:
    """Whether a name says that its value is nobody else's business: `HF_TOKEN`, `apiKey`, `--db-password`."""
    parts = [part.upper() for part in _PARTS.split(name)]
    return any(part in _WORDS or part.endswith(_ENDINGS) for part in parts)


def secret_values(*tables: Mapping[str, str]) -> list[str]:
    """The values of those variables whose names look secret."""
    return [value for table in tables for name, value in table.items() if looks_secret(name)]


class Redactor:
    """Removes, and counts.

    Args:
        secrets: values that are known; each is found as it is, as JSON, in a URL, in base64, and line by line.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self.removed = 0
        found = {form for secret in secrets for form in _forms_of(secret)}
        longest_first = sorted(found, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest_first))) if found else None

    def text(self, text: str) -> str:
        """The text without its secrets."""
        if self._known is not None:
            text, count = self._known.subn(REMOVED, text)
            self.removed += count
        for pattern, by in _PATTERNS:
            text, count = pattern.subn(by, text)
            self.removed += count
        return text

    def value(self, value: Any, *, variables: bool = False) -> Any:  # noqa: ANN401 - JSON
        """The same for nested values; keys that look secret lose theirs, words after a flag that does, too.

        Args:
            variables: the keys of this table are names of variables.
        """
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(name)): self._entry(str(name), item, variables) for name, item in value.items()}
        if isinstance(value, list | tuple):
            before = ["", *(item if isinstance(item, str) else "" for item in value)]
            return [self._word(flag, item) for flag, item in zip(before, value, strict=False)]
        return value

    def _entry(self, name: str, item: Any, variables: bool) -> Any:  # noqa: ANN401, FBT001 - as above
        named = looks_secret(name) and (variables or name not in _PLAIN_KEYS)
        if named and isinstance(item, str) and item:
            return self._remove()
        return self.value(item, variables=name in _VARIABLES)

    def _word(self, flag: str, item: Any) -> Any:  # noqa: ANN401 - as above
        if isinstance(item, str) and flag.startswith("-") and "=" not in flag and looks_secret(flag):
            return item if item.startswith("-") else self._remove()
        return self.value(item)

    def _remove(self) -> str:
        self.removed += 1
        return REMOVED


def _forms_of(secret: str) -> Iterable[str]:
    lines = [secret, *secret.splitlines()] if "\n" in secret else [secret]
    for line in lines:
        plain = line.strip()
        if len(plain) < _LEAST_CHARS:
            continue
        raw = plain.encode("utf-8", "surrogateescape")
        yield plain
        yield raw.decode("utf-8", "replace")
        yield json.dumps(plain)[1:-1]
        yield json.dumps(plain, ensure_ascii=False)[1:-1]
        yield repr(plain)[1:-1]
        yield quote(raw, safe="")
        yield base64.b64encode(raw).decode().rstrip("=")
