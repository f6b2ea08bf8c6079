"""Free what no run uses any more: contents and manifests of the store.

What was stored or asked for lately stays, as its run may be on its way: `ObjectStore.missing` touches what it finds.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gangline.snapshot.objects import ObjectStore

__all__ = ["Swept", "sweep"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What was removed."""

    num_objects: int
    num_snapshots: int
    freed_bytes: int


def sweep(store: ObjectStore, *, snapshots: Collection[str], objects: Collection[str], before: float) -> Swept:
    """Remove what is in neither list and was last touched before a time (of this machine's clock).

    Args:
        snapshots: digests of manifests that runs use; their contents are used, too.
        objects: further digests of contents that are used.
    Raises:
        NotFound, InvalidRequest, ValueError, OSError: a manifest cannot be read, so nobody knows what it uses: nothing
            was removed.
    """
    used = set(objects)
    idle = []
    for path in store.snapshot_files():
        if path.stem in snapshots or not _is_older(path, before):
            used.update(store.get_manifest(path.stem).digests())
        else:
            idle.append(path)
    manifests = [size for path in idle if (size := _remove(path, before)) is not None]
    contents = [
        size
        for path, digest in store.object_files()
        if digest not in used and (size := _remove(path, before)) is not None
    ]
    return Swept(num_objects=len(contents), num_snapshots=len(manifests), freed_bytes=sum(manifests) + sum(contents))


def _remove(path: Path, before: float) -> int | None:
    """Remove a file if it is still old; its size."""
    with suppress(FileNotFoundError):
        if _is_older(path, before):
            size = path.stat().st_size
            path.unlink()
            return size
    return None


def _is_older(path: Path, before: float) -> bool:
    return path.stat().st_mtime < before
