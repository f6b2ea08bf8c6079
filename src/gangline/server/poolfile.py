"""Changes to `pools.yaml` that leave alone what people have written around them. Pure but for `PoolFile`.

An edit is made in the text, read again, and counts only if it says what was meant; otherwise the file is written anew.
"""

from __future__ import annotations

import textwrap
import threading
from collections.abc import Mapping
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from gangline.domain.errors import Conflict, NotFound, SpecInvalid, nearest
from gangline.domain.pool import Pool
from gangline.rundir.files import write_text
from gangline.rundir.home import Home
from gangline.wire.pools import pool_from_mapping, pool_to_mapping, pools_from_yaml

__all__ = ["PoolFile", "add_text", "remove_text"]

_INDENT = 2


class PoolFile:
    """The `pools.yaml` of a state folder. Safe for threads."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._lock = threading.Lock()

    def add(self, name: str, keys: Mapping[str, Any]) -> Pool:
        """Write a new pool into the file.

        Raises:
            SpecInvalid: it is not described as it has to be, or the file has an error already.
            Conflict: there is a pool of that name.
        """
        pool = pool_from_mapping(name, keys)
        with self._lock:
            pools = pools_from_yaml(self._home.pools)
            if name in pools:
                raise Conflict(
                    f"There is a pool `{name}` already",
                    fix=f"Change it in {self._home.pools}, or take it out first: gangline pools remove {name}",
                )
            self._write(add_text(self._text(), name, pool_to_mapping(pool)), {**pools, name: pool})
        return pool

    def remove(self, name: str) -> None:
        """Take a pool out of the file.

        Raises:
            NotFound: there is none of that name.
            SpecInvalid: the file has an error.
        """
        with self._lock:
            pools = pools_from_yaml(self._home.pools)
            if name not in pools:
                known = nearest(name, pools) if pools else "It names no pool at all."
                raise NotFound(f"{self._home.pools} has no pool `{name}`", fix=known)
            rest = {other: pool for other, pool in pools.items() if other != name}
            self._write(remove_text(self._text(), name), rest)

    def _text(self) -> str:
        return self._home.pools.read_text(encoding="utf-8-sig") if self._home.pools.exists() else ""

    def _write(self, text: str | None, meant: Mapping[str, Pool]) -> None:
        beside = self._home.pools.with_name(f"{self._home.pools.name}.new")
        if text is not None:
            write_text(beside, text, mode=0o600)
        if text is None or not _says(beside, meant):
            pools = {name: pool_to_mapping(pool) for name, pool in meant.items()}
            write_text(beside, _dump({"pools": pools}) if pools else "pools: {}\n", mode=0o600)
        beside.replace(self._home.pools)


def _says(path: Any, meant: Mapping[str, Pool]) -> bool:
    try:
        return pools_from_yaml(path) == meant
    except SpecInvalid:
        return False


def add_text(text: str, name: str, keys: Mapping[str, Any]) -> str | None:
    """The file with one more pool, behind the others; None: it is written in a way that takes no simple addition."""
    lines = text.splitlines()
    pools, column = _find_pools(text)
    if pools is None:
        if _compose(text) is not None:
            return None
        return "\n".join([*lines, "pools:", *_block(name, keys, _INDENT)]) + "\n"
    if isinstance(pools, ScalarNode):
        last = pools.start_mark.line
    elif isinstance(pools, MappingNode) and not pools.flow_style and pools.value:
        last, column = _last_line(pools), pools.value[0][0].start_mark.column
    else:
        return None
    return "\n".join([*lines[: last + 1], *_block(name, keys, column), *lines[last + 1 :]]) + "\n"


def remove_text(text: str, name: str) -> str | None:
    """The file without a pool; None: it is written in a way that takes no simple removal."""
    pools, _ = _find_pools(text)
    if not isinstance(pools, MappingNode) or pools.flow_style:
        return None
    for key, value in pools.value:
        if key.value == name:
            lines = text.splitlines()
            return "\n".join([*lines[: key.start_mark.line], *lines[_last_line(value) + 1 :]]) + "\n"
    return None


def _find_pools(text: str) -> tuple[Node | None, int]:
    """The value of `pools`, and the column for the names in it; None: the file has no such key."""
    root = _compose(text)
    if isinstance(root, MappingNode) and not root.flow_style:
        for key, value in root.value:
            if key.value == "pools":
                return value, key.start_mark.column + _INDENT
    return None, _INDENT


def _compose(text: str) -> Node | None:
    found: Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    return found


def _last_line(node: Node) -> int:
    """The last line on which something of a node stands; what follows, remarks included, is not its own."""
    if not isinstance(node, MappingNode | SequenceNode) or not node.value or node.flow_style:
        end = node.end_mark
        return int(end.line if end.column else max(node.start_mark.line, end.line - 1))
    last = node.value[-1]
    return _last_line(last[1] if isinstance(node, MappingNode) else last)


def _block(name: str, keys: Mapping[str, Any], column: int) -> list[str]:
    return textwrap.indent(_dump({name: dict(keys)}), " " * column).splitlines()


def _dump(value: Mapping[str, Any]) -> str:
    return str(yaml.safe_dump(dict(value), sort_keys=False, allow_unicode=True, width=120))
