"""One file of two snapshots, beside one another."""

from __future__ import annotations

from gangline.domain.errors import NotFound
from gangline.snapshot.diff import render_unified
from gangline.snapshot.manifest import FileEntry, printable
from gangline.snapshot.objects import ObjectStore
from gangline.wire.compared import CodeChangeView

__all__ = ["compare_file"]

_LARGEST_BYTES = 2 << 20


def compare_file(
    change: str, old: FileEntry | None, new: FileEntry | None, *, objects: ObjectStore, room: int
) -> CodeChangeView:
    """What differs.

    Args:
        change: `added`, `removed` or `changed`; at least one of the two is there.
        room: most characters that the differences may take.
    """
    both = [one for one in (old, new) if one is not None]
    view = CodeChangeView(
        path=printable(both[-1].path), change=change, lines_added=None, lines_removed=None, diff=None, note=""
    )
    note = _note_without_reading(both)
    if note:
        return {**view, "note": note}
    try:
        before, after = _read(old, objects), _read(new, objects)
    except (NotFound, OSError):
        return {**view, "note": "its content is not stored any more"}
    text = render_unified(both[-1].path, before, after)
    if text.startswith("Binary files "):
        return {**view, "note": "binary"}
    added, removed = _count_lines(text)
    note = "mode" if change == "changed" and not text else ""
    note = note or ("" if len(text) <= room else "left out: the differences are too many")
    shown = text if len(text) <= room else None
    return {**view, "lines_added": added, "lines_removed": removed, "diff": shown, "note": note}


def _note_without_reading(entries: list[FileEntry]) -> str:
    kinds = [one.kind for one in entries]
    if any(kind != "file" for kind in kinds):
        return " → ".join(dict.fromkeys(kinds))
    return "too large to be compared line by line" if max(one.size for one in entries) > _LARGEST_BYTES else ""


def _read(entry: FileEntry | None, objects: ObjectStore) -> bytes:
    if entry is None or entry.digest is None:
        return b""
    with objects.open(entry.digest) as file:
        return file.read()


def _count_lines(text: str) -> tuple[int, int]:
    lines = text.splitlines()[2:]
    return sum(line.startswith("+") for line in lines), sum(line.startswith("-") for line in lines)
