"""Secrets out of texts and values that are to be handed on. Pure; standard library only.

What is taken for a secret: the values of variables and keys whose names say so, wherever they stand; tokens of known
forms; what stands between `://` and `@` in a URL; private keys. Rather too much is removed than too little.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from gangline.domain.secretforms import REMOVED, find_secrets, strip_codes
from gangline.domain.secretnames import looks_secret, secret_values, secret_words

__all__ = ["REMOVED", "Redactor", "looks_secret", "secret_values", "secret_words"]

_LEAST_CHARS = 6
"""Shorter values are removed where they stand, but not looked for elsewhere: they would be found in every word."""
_VARIABLES = frozenset({"env", "inherited_env", "variables"})
"""Tables whose keys are names of variables."""
_PLAIN_KEYS = frozenset({"key", "keys"})


class Redactor:
    """Removes, and counts.

    Args:
        secrets: values that are known; each is found as it is, as JSON, in a URL, in base64, and line by line.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self.removed = 0
        found = {form for secret in secrets for form in _forms_of(secret) if form not in REMOVED}
        self._known = sorted(found, key=len, reverse=True)

    def text(self, text: str) -> str:
        """The text without its secrets, and without codes for colours."""
        text = strip_codes(text)
        for known in self._known:
            if known in text:
                self.removed += text.count(known)
                text = text.replace(known, REMOVED)
        pieces, done = [], 0
        for begin, end in find_secrets(text):
            pieces += [text[done:begin], REMOVED]
            done = end
        self.removed += len(pieces) // 2
        return "".join([*pieces, text[done:]]) if pieces else text

    def json(self, text: str) -> str:
        """The same for JSON, or for lines of it: parsed, cleaned, written again; other text is cleaned as such."""
        whole = self._parsed(text, indent=1)
        if whole is not None:
            return whole
        lines = [(line, self._parsed(line) if line.strip() else line) for line in text.split("\n")]
        torn = any(clean is None for _, clean in lines)
        joined = "\n".join(line if clean is None else clean for line, clean in lines)
        return self.text(joined) if torn else joined

    def _parsed(self, text: str, *, indent: int | None = None) -> str | None:
        try:
            return json.dumps(self.value(json.loads(text)), indent=indent if "\n" in text.strip() else None)
        except (ValueError, RecursionError):
            return None

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
