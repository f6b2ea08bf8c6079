"""Read a YAML file into tables, lists and text, with the line of every key.

What is written is what arrives: values that are not quoted stay text as they stand (`1e-4`, `1.10`, `yes`, `012`,
`12:30:00`), and the key that takes them decides whether they are numbers. Only `null`, `~` and nothing mean null.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path as FilePath

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from gangline.domain.errors import SpecInvalid
from gangline.domain.faults import Faults
from gangline.wire.schema import Path

__all__ = ["read_yaml"]

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_STANDARD = "tag:yaml.org,2002:"
_PLAIN_TAGS = frozenset(
    _STANDARD + name for name in ("str", "int", "float", "bool", "null", "timestamp", "map", "seq", "value", "merge")
)
_MAX_BYTES = 1_000_000
_MAX_REPEATED = 10_000
"""Values that aliases may add to those that are written; a text counts once for each 100 characters begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """A file that is read, and what is known of it so far."""

    path: FilePath
    faults: Faults
    lines: dict[Path, int] = field(default_factory=dict)


def read_yaml(
    path: FilePath, *, example: str = "script: train.py", may_be_empty: bool = False, faults: Faults | None = None
) -> tuple[dict[str, object], dict[Path, int]]:
    """The file's table, and the line (from 1) of every key in it.

    Args:
        example: a line that such a file may have.
        may_be_empty: a file that holds nothing is an empty table.
        faults: takes what is wrong in a file that can be read on: keys that are named twice or are no words, and tags;
            None: they are raised, all of them at once.
    Raises:
        SpecInvalid: the file cannot be read, is no UTF-8, no YAML, empty or no table.
    """
    if path.suffix in {".py", ".ipynb", ".sh"} and path.is_file():
        raise SpecInvalid(
            f"{path} is a script, not a run file", fix=f"A script is named without -f: gangline submit {path}"
        )
    root = _compose(_read_text(path), path)
    if root is None and may_be_empty:
        return {}, {}
    if root is None:
        raise SpecInvalid(f"{path} is empty", fix=f"Write at least `{example}`, or leave the file out.")
    if not isinstance(root, MappingNode):
        raise SpecInvalid(f"{path} holds {_kind(root)}", fix=f"Write keys with values, such as `{example}`.")
    file = _File(path=path, faults=Faults() if faults is None else faults)
    try:
        _check_aliases(root, path)
        found = _table(root, (), file)
    except RecursionError:
        raise SpecInvalid(f"{path} is nested without end", fix="An alias (`*name`) must not hold itself.") from None
    if faults is None:
        file.faults.raise_all(str(path))
    return found, file.lines


def _read_text(path: FilePath) -> str:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise SpecInvalid(f"{path} cannot be read", why=error.strerror or str(error), fix="Check the path.") from None
    if len(raw) > _MAX_BYTES:
        raise SpecInvalid(f"{path} has {len(raw)} bytes, {_MAX_BYTES} are allowed", fix="Is it the right file?")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise SpecInvalid(f"{path}, line {line} is not UTF-8", fix="Save the file as UTF-8.") from None


def _compose(text: str, path: FilePath) -> Node | None:
    try:
        found: Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise SpecInvalid(f"{path}, line {line} is not YAML", **_explain(text, line, error.problem or "")) from None
    except (yaml.YAMLError, RecursionError) as error:
        raise SpecInvalid(f"{path} is not YAML", why=str(error).splitlines()[0]) from None
    return found


def _check_aliases(root: Node, path: FilePath) -> None:
    """Refuse aliases that stand for aliases that stand for …: a few lines of them fill any memory.

    Raises:
        SpecInvalid
        RecursionError: an alias holds itself.
    """
    weights: dict[int, int] = {}
    written = 0

    def weigh(node: Node) -> int:
        nonlocal written
        known = weights.get(id(node))
        if known is not None:
            return known
        own = 1 + len(node.value) // 100 if isinstance(node, ScalarNode) else 1
        written += own
        weight = own + sum(map(weigh, _parts(node)))
        if weight - written > _MAX_REPEATED:
            raise SpecInvalid(
                f"{path}, line {_line(node)} stands for more than {_MAX_REPEATED:,} values, by its aliases (`*name`)",
                fix="Write the values out, or name fewer of them.",
            )
        weights[id(node)] = weight
        return weight

    weigh(root)


def _parts(node: Node) -> Iterator[Node]:
    """What a list or a table holds, keys and values."""
    if isinstance(node, MappingNode):
        return chain.from_iterable(node.value)
    return iter(node.value if isinstance(node, SequenceNode) else ())


def _explain(text: str, line: int, problem: str) -> dict[str, str]:
    written = text.splitlines()[line - 1] if line <= len(text.splitlines()) else ""
    indent = written[: len(written) - len(written.lstrip())]
    if "\t" in indent:
        return {"why": "It is indented with a tab.", "fix": "Indent with spaces."}
    if "another document" in problem or "single document" in problem:
        return {"why": "A second document begins there.", "fix": "Keep one document a file."}
    return {"why": problem.capitalize(), "fix": "Quote texts that hold `: `, `#` or start with a special character."}


def _value(node: Node, at: Path, file: _File) -> object:
    if node.tag not in _PLAIN_TAGS:
        file.faults.add(
            SpecInvalid(
                f"{file.path}, line {_line(node)} has the tag `{node.tag}`", fix="Write plain values, without tags."
            )
        )
    if isinstance(node, MappingNode):
        return _table(node, at, file)
    if isinstance(node, SequenceNode):
        return [_value(item, at, file) for item in node.value]
    text = str(node.value)
    return None if isinstance(node, ScalarNode) and node.style is None and text in _NULLS else text


def _table(node: MappingNode, at: Path, file: _File) -> dict[str, object]:
    """What it holds; of a key that is named twice the first value."""
    found: dict[str, object] = {}
    for key_node, value_node in node.value:
        with file.faults.gathered():
            here = (*at, _read_key(key_node, found, at, file))
            file.lines[here] = _line(key_node)
            found[here[-1]] = _value(value_node, here, file)
    return found


def _read_key(node: Node, known: Container[str], at: Path, file: _File) -> str:
    """Raises: SpecInvalid: it is no word, or its table has it already."""
    if not isinstance(node, ScalarNode):
        raise SpecInvalid(f"{file.path}, line {_line(node)} has {_kind(node)} for a key", fix="Keys are words.")
    key = str(node.value)
    if key in known:
        here = (*at, key)
        raise SpecInvalid(
            f"{file.path}, line {_line(node)} names `{key}` again",
            why=f"It has a value in line {file.lines[here]} already.",
            fix="Keep one.",
        )
    return key


def _kind(node: Node) -> str:
    if isinstance(node, MappingNode):
        return "a table"
    return "a list" if isinstance(node, SequenceNode) else "one value"


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1
