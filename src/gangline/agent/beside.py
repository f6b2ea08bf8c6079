"""What an agent does beside the ranks of its node while they run: it samples, it watches, it looks at the disk.

It is imported once the first ranks have started, which do not wait for it. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gangline.agent.accelerators import Accelerators
from gangline.agent.diskroom import DiskRoom
from gangline.agent.loop import Loop
from gangline.agent.node import Node
from gangline.agent.pacing import NodePace
from gangline.agent.reserved import Reserved
from gangline.agent.sampler import SystemJournal
from gangline.agent.watch.nodewatch import NodeWatch

__all__ = ["Beside"]

_SAMPLE_S = 2.0


class Beside:
    """Beside one node, from its first start of ranks to the end of the agent."""

    def __init__(self, node: Node, loop: Loop, report: Callable[[dict[str, Any]], None]) -> None:
        site = node.site
        self._accelerators = Accelerators(site.launch.device_kind, loop, helpers=node.helpers)
        self._system = SystemJournal(site.index, self._accelerators)
        self._watch = NodeWatch(node, loop, report, accelerators=self._accelerators)
        NodePace(node, self._system, loop, report)
        self._reserved = Reserved(site.launch.memory_bytes, f"node {site.index} ({site.host})", node.warn)
        loop.every(_SAMPLE_S, lambda: self._sample(node))
        if site.index == 0:  # all nodes share the run directory
            room = DiskRoom(site.run.path, node.warn)
            loop.every(_SAMPLE_S, lambda: room.look() if node.folder is not None else None)

    def _sample(self, node: Node) -> None:
        folder, ranks = node.folder, node.live_ranks
        self._system.sample(folder, ranks)
        self._reserved.look(None if folder is None else folder.path, ranks, self._system.newest)

    def take_stacks(self, order: Mapping[str, Any]) -> None:
        """The leader asks for stacks."""
        self._watch.take(order)

    def close(self) -> None:
        """End the tools that it has started."""
        self._accelerators.close()
