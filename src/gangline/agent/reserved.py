"""Whether the ranks of a node keep to the memory that their run has asked for. Standard library only.

`--memory` says where a run may be placed; it is no limit, and nothing ends a run that uses more. It is said, since the
next run on the machine was promised what this one takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gangline.agent.memory import format_bytes
from gangline.agent.ranktree import find_children

__all__ = ["Reserved", "read_shares"]


class Reserved:
    """Looks at samples of one node, and warns once an attempt.

    Args:
        asked_bytes: by `--memory`, for each node; None: nothing was said.
        node: which node, as people read it.
        shares: memory of each rank and all below it, by rank, where pages that several processes share count in parts.
    """

    def __init__(
        self,
        asked_bytes: int | None,
        node: str,
        warn: Callable[..., None],
        *,
        shares: Callable[[Mapping[int, int]], dict[int, int]] | None = None,
    ) -> None:
        self._asked_bytes = asked_bytes
        self._node = node
        self._warn = warn
        self._shares = shares or read_shares
        self._told: Path | None = None

    def look(self, attempt: Path | None, ranks: Mapping[int, int], sample: Mapping[str, Any]) -> None:
        """See what a sample says.

        Args:
            attempt: its folder; None: none runs.
            ranks: pid of each live rank, by rank.
        """
        if self._asked_bytes is None or attempt is None or attempt == self._told:
            return
        resident = [load.get("rss_bytes") or 0 for load in sample.get("ranks", {}).values()]
        if sum(resident) <= self._asked_bytes:
            return
        used = self._shares(ranks)  # dearer than the sample, which counts what ranks share for each of them
        total = sum(used.values())
        if total > self._asked_bytes:
            self._told = attempt
            most = max(used, key=lambda rank: used[rank])
            self._warn(
                f"The ranks of {self._node} use {format_bytes(total)} of memory, --memory has asked for "
                f"{format_bytes(self._asked_bytes)}; rank {most} uses most, {format_bytes(used[most])}. "
                "It is no limit, but others were promised the rest.",
                rank=most,
            )


def read_shares(ranks: Mapping[int, int]) -> dict[int, int]:
    """Memory of each rank with all below it, in bytes, from /proc; 0 for one that is gone."""
    return {rank: sum(map(_share, (pid, *find_children(pid)))) for rank, pid in ranks.items()}


def _share(pid: int) -> int:
    with suppress(OSError, ValueError, StopIteration), Path(f"/proc/{pid}/smaps_rollup").open("rb") as file:
        line = next(line for line in file if line.startswith(b"Pss:"))
        return int(line.split()[1]) * 1024
    return 0
