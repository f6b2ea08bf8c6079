"""Existing batch scripts of Slurm: what runs them, and what they ask of sbatch. Pure; standard library only."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gangline.domain.errors import SpecInvalid
from gangline.domain.naming import printable

__all__ = ["BatchScript", "parse_batch_script"]

_LONG: Mapping[str, str] = {
    "A": "account",
    "a": "array",
    "B": "extra-node-info",
    "b": "begin",
    "C": "constraint",
    "c": "cpus-per-task",
    "D": "chdir",
    "d": "dependency",
    "e": "error",
    "F": "nodefile",
    "G": "gpus",
    "H": "hold",
    "i": "input",
    "J": "job-name",
    "k": "no-kill",
    "L": "licenses",
    "M": "clusters",
    "m": "distribution",
    "N": "nodes",
    "n": "ntasks",
    "O": "overcommit",
    "o": "output",
    "p": "partition",
    "Q": "quiet",
    "q": "qos",
    "S": "core-spec",
    "s": "oversubscribe",
    "t": "time",
    "v": "verbose",
    "W": "wait",
    "w": "nodelist",
    "x": "exclude",
}
"""What sbatch calls its letters."""
_BARE = frozenset({"H", "k", "O", "Q", "s", "v", "W"})
"""Letters without a value."""
_SAME = {"workdir": "chdir"}
_REFUSED = {
    "array": "A run is one job: submit each element of the array as a run of its own",
    "clusters": "A pool is one cluster: leave it out, or make a pool of that one",
}
_DIRECTIVE = "#SBATCH"
_SHEBANG = re.compile(r"#!\s*(\S.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchScript:
    """One script."""

    interpreter: tuple[str, ...]
    """From its first line."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Of sbatch, by their long names; "" where there is no value. The last of several counts."""


def parse_batch_script(text: str, name: str) -> BatchScript:
    """Read a script as sbatch does: its options end at the first line that is neither empty nor a comment.

    Args:
        name: for messages.
    Raises:
        SpecInvalid: sbatch would not take it, or it asks for what a run cannot be.
    """
    first, *rest = text.split("\n")
    shebang = _SHEBANG.fullmatch(first.rstrip("\r"))
    if shebang is None:
        raise SpecInvalid(
            f"`{name}` is no batch script", why="Its first line is no `#!`", fix="Begin it with `#!/bin/bash`."
        )
    if "\r" in text:
        raise SpecInvalid(
            f"`{name}` has line ends of DOS", why="sbatch refuses it", fix=f"Convert it: sed -i 's/\\r$//' {name}"
        )
    options: dict[str, str] = {}
    for number, line in enumerate(rest, 2):
        if line.strip() and not line.lstrip().startswith("#"):
            break
        if line.startswith(_DIRECTIVE):
            options.update(_read_line(line, f"{name}:{number}"))
    for option, why in _REFUSED.items():
        if option in options:
            raise SpecInvalid(f"`{name}` asks for --{option}", why=why)
    return BatchScript(interpreter=tuple(shlex.split(shebang[1])), options=options)


def _read_line(line: str, place: str) -> Iterator[tuple[str, str]]:
    try:
        words = shlex.split(line.removeprefix(_DIRECTIVE), comments=True)
    except ValueError as error:
        raise SpecInvalid(f"{place} cannot be read: {printable(line)}", why=str(error)) from error
    while words:
        word = words.pop(0)
        if word.startswith("--"):
            name, has_value, value = word[2:].partition("=")
            if not has_value and words and not words[0].startswith("-"):
                value = words.pop(0)
            yield _SAME.get(name, name), value
        elif word.startswith("-") and len(word) > 1 and word[1] in _LONG:
            yield _LONG[word[1]], _short_value(word, words)
        else:
            raise SpecInvalid(f"{place} has `{printable(word)}`, which is no option of sbatch")


def _short_value(word: str, words: list[str]) -> str:
    if word[1] in _BARE:
        return ""
    value = word[2:] or (words.pop(0) if words else "")
    return value.removeprefix("=")
