"""What the ranks' interpreter is and what is installed for it, without importing any of it. Standard library only.

Asking costs an interpreter's start, so the answer is kept: it holds for as long as the interpreter and the folders
that it imports from are the same.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gangline.rundir.files import Unreadable, read_json, write_json

__all__ = ["KeptAnswers", "parse_answer", "question"]

_BINARY = (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
"""How programs begin. What a script runs is up to the script, so its answers are not kept."""
_QUESTION = r"""
import json, os, re, sys
found, searched = {}, []
for folder in sys.path:
    try:
        names = os.listdir(folder) if folder else []
    except OSError:
        continue
    if folder:
        searched.append(folder)
    for name in names:
        match = re.fullmatch(r"(.+?)-([^-]+?)(?:-py[\d.]+)?\.(?:dist-info|egg-info)", name)
        if match:
            found.setdefault(re.sub(r"[-_.]+", "-", match[1]).lower(), match[2])
torch = {}
for folder in searched:
    try:
        with open(os.path.join(folder, "torch", "version.py"), encoding="utf-8") as file:
            torch = dict(re.findall(r"^(cuda|hip|git_version|__version__)\b[^=]*= *'([^']*)'", file.read(), re.M))
        break
    except OSError:
        continue
print(json.dumps({
    "executable": sys.executable, "version": sys.version.split()[0], "implementation": sys.implementation.name,
    "prefix": sys.prefix, "base_prefix": sys.base_prefix, "packages": dict(sorted(found.items())), "torch": torch,
    "path": searched,
}))
"""


def question(python: str) -> list[str]:
    """The command that asks; what it prints is for `parse_answer`."""
    return [python, "-B", "-c", _QUESTION]


def parse_answer(text: str) -> dict[str, Any] | None:
    """The last line that is an answer: a `sitecustomize` may have printed before. None: there is none."""
    for line in reversed(text.splitlines()):
        with suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict) and isinstance(found.get("packages"), dict):
                return found
    return None


class KeptAnswers:
    """Answers of earlier times, in a folder that runs share.

    Args:
        folder: None: nothing is kept.
        env: what the ranks see: variables of Python change where it imports from.
    """

    def __init__(self, folder: Path | None, python: str, env: Mapping[str, str]) -> None:
        variables = {name: value for name, value in sorted(env.items()) if name.startswith("PYTHON")}
        self._key = [os.uname().nodename, python, variables]
        mark = json.dumps(self._key).encode("utf-8", "surrogateescape")
        self._path = folder / f"{zlib.crc32(mark):08x}{zlib.adler32(mark):08x}.json" if folder else None
        self._python = python

    def find(self) -> dict[str, Any] | None:
        """The answer, if it still holds."""
        if self._path is None:
            return None
        try:
            kept = read_json(self._path)
        except (OSError, Unreadable):
            return None
        if kept is None or kept.get("key") != self._key:
            return None
        answer = kept.get("answer") or {}
        return answer if kept.get("stamps") == self._stamps(answer.get("path", ())) else None

    def keep(self, answer: Mapping[str, Any]) -> None:
        """Keep an answer, if it is one that can be trusted later. A full disk costs a question next time."""
        with suppress(OSError):
            if self._path is not None and _is_program(self._python):
                stamps = self._stamps(answer.get("path", ()))
                write_json(self._path, {"key": self._key, "stamps": stamps, "answer": answer})

    def _stamps(self, searched: Sequence[str]) -> list[list[int]]:
        config = Path(self._python).parent.parent / "pyvenv.cfg"
        return [_stamp(path) for path in (self._python, str(config), *searched)]


def _stamp(path: str) -> list[int]:
    with suppress(OSError):
        found = Path(path).stat()
        return [found.st_ino, found.st_mtime_ns, found.st_size]
    return []


def _is_program(path: str) -> bool:
    with Path(path).open("rb") as file:
        return file.read(4) in _BINARY
