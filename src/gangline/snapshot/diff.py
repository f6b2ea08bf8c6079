"""What differs between two trees."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from gangline.snapshot.manifest import Manifest, printable

__all__ = ["TreeDiff", "diff", "render_unified"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeDiff:
    """Paths, each sorted."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    """In both, with another content, mode, kind or target."""

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


def diff(old: Manifest, new: Manifest) -> TreeDiff:
    """Compare two trees by their manifests alone."""
    before = {entry.path: entry for entry in old.files}
    after = {entry.path: entry for entry in new.files}
    return TreeDiff(
        added=tuple(sorted(after.keys() - before.keys())),
        removed=tuple(sorted(before.keys() - after.keys())),
        changed=tuple(sorted(path for path in before.keys() & after.keys() if before[path] != after[path])),
    )


def render_unified(path: str, old: bytes, new: bytes) -> str:
    """A unified diff of one file for people; binary contents are only said to differ; "" if they are equal."""
    if old == new:
        return ""
    name = printable(path)
    if b"\0" in old or b"\0" in new:
        return f"Binary files a/{name} and b/{name} differ\n"
    lines = difflib.unified_diff(_lines(old), _lines(new), fromfile=f"a/{name}", tofile=f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _lines(raw: bytes) -> list[str]:
    return [line.decode("utf-8", "replace") for line in raw.splitlines(keepends=True)]
