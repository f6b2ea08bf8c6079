"""How much memory this node may use and uses: of the machine, or of the control group that the agent is in.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Memory", "count_oom_kills", "format_bytes", "read_memory"]

_UNLIMITED_BYTES = 1 << 60
"""Control groups of version 1 write a number about as large where they have no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """A limit and what is used of it, without what the kernel gives back when asked."""

    limit_bytes: int
    used_bytes: int


def read_memory(proc: Path = Path("/proc"), mounts: Path = Path("/sys/fs/cgroup")) -> Memory | None:
    """The tightest limit that holds for this process; None where the system does not tell (macOS)."""
    found = [*_machine(proc / "meminfo"), *_groups(proc / "self" / "cgroup", mounts)]
    return min(found, key=lambda memory: memory.limit_bytes - memory.used_bytes, default=None)


def count_oom_kills(proc_cgroup: Path = Path("/proc/self/cgroup"), mounts: Path = Path("/sys/fs/cgroup")) -> int | None:
    """How often the kernel has killed for memory in this process's control group; None where that is not told."""
    with suppress(OSError):
        for line in proc_cgroup.read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                folder, file = mounts, "memory.events"
            elif "memory" in controllers.split(","):
                folder, file = mounts / "memory", "memory.oom_control"
            else:
                continue
            count = _read_oom_kill(folder, path, file)
            if count is not None:
                return count
    return None


def format_bytes(size: int) -> str:
    """`1.5 GiB`."""
    amount = float(size)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if amount < 1024:  # noqa: PLR2004
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def _machine(meminfo: Path) -> Iterator[Memory]:
    with suppress(OSError, ValueError, KeyError):
        rows = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines())
        total, free = (int(rows[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
        yield Memory(limit_bytes=total, used_bytes=total - free)


def _groups(membership: Path, mounts: Path) -> Iterator[Memory]:
    with suppress(OSError):
        for line in membership.read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield from _group(mounts, path, files=("memory.max", "memory.current"), idle="inactive_file")
            elif "memory" in controllers.split(","):
                files = ("memory.limit_in_bytes", "memory.usage_in_bytes")
                yield from _group(mounts / "memory", path, files=files, idle="total_inactive_file")


def _group(mount: Path, path: str, *, files: tuple[str, str], idle: str) -> Iterator[Memory]:
    """The group itself and those around it; inside a container its own is mounted as the top."""
    folder = mount / path.strip("/")
    for place in dict.fromkeys([folder, *folder.parents]):
        if not place.is_relative_to(mount):
            return
        with suppress(OSError, ValueError):  # "max" is no number: no limit
            limit, used = (int((place / file).read_text(encoding="ascii")) for file in files)
            if 0 < limit < _UNLIMITED_BYTES:
                yield Memory(limit_bytes=limit, used_bytes=max(0, used - _idle(place / "memory.stat", idle)))


def _idle(stat: Path, name: str) -> int:
    with suppress(OSError, ValueError):
        rows = dict(line.split() for line in stat.read_text(encoding="ascii").splitlines())
        return int(rows.get(name, 0))
    return 0


def _read_oom_kill(folder: Path, path: str, file: str) -> int | None:
    for place in (folder / path.lstrip("/") / file, folder / file):
        with suppress(OSError, ValueError):
            rows = dict(row.split(maxsplit=1) for row in place.read_text(encoding="ascii").splitlines())
            if "oom_kill" in rows:
                return int(rows["oom_kill"])
    return None
