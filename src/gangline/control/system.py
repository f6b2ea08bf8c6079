"""The newest samples that a run's agents took of their machines, read from `system.jsonl` when somebody asks."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from gangline.rundir.journal import parse_records
from gangline.rundir.layout import AttemptDir
from gangline.store.rows import AttemptRow
from gangline.wire.views import SystemView

__all__ = ["MOST_SAMPLES", "newest_samples", "system_views"]

MOST_SAMPLES = 1000
_FIRST_BYTES = 64 << 10
_MOST_BYTES = 16 << 20


def system_views(folder: AttemptDir, attempt: AttemptRow, samples: int) -> list[SystemView]:
    """The newest `samples` samples of each node of an attempt, oldest first."""
    hosts = {node["node"]: str(node.get("host") or "") for node in attempt.nodes}
    return [
        SystemView(
            node=node,
            host=hosts.get(node, ""),
            attempt=attempt.number,
            samples=newest_samples(folder.system(node), samples),
        )
        for node in folder.nodes()
    ]


def newest_samples(path: Path, count: int) -> list[dict[str, Any]]:
    """The last samples of a journal; reads no more of it than it has to."""
    wanted = _FIRST_BYTES
    while True:
        data, whole = _read_end(path, wanted)
        found = list(_samples(data))
        if len(found) >= count or whole or wanted >= _MOST_BYTES:
            return found[-count:]
        wanted *= 4


def _read_end(path: Path, size_bytes: int) -> tuple[bytes, bool]:
    """The end of a file from the first whole line on, and whether that is all of it."""
    with suppress(OSError), path.open("rb") as file:
        end = file.seek(0, 2)
        start = max(0, end - size_bytes)
        file.seek(start)
        data = file.read(size_bytes)
        return (data, True) if start == 0 else (data.partition(b"\n")[2], False)
    return b"", True


def _samples(data: bytes) -> Iterable[dict[str, Any]]:
    records, *_ = parse_records(data)
    return (record for record in records if record.get("kind") == "sample")
