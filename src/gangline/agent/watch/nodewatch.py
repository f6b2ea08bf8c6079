"""A node's part of the watchdog: samples of its ranks for the leader, stacks on request. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gangline.agent.accelerators import Accelerators
from gangline.agent.loop import Loop
from gangline.agent.node import Node
from gangline.agent.watch.recorder import ask_for_flight, read_flight
from gangline.agent.watch.sampling import Reports, sample_ranks
from gangline.agent.watch.taking import Taking, find_pyspy
from gangline.agent.watch.vigil import decide_period_s
from gangline.rundir.layout import AttemptDir

__all__ = ["NodeWatch"]


class NodeWatch:
    """Beside one node."""

    def __init__(
        self, node: Node, loop: Loop, report: Callable[[dict[str, Any]], None], *, accelerators: Accelerators
    ) -> None:
        self._node = node
        self._loop = loop
        self._report = report
        self._reports: dict[int, Reports] = {}
        self._attempt = -1
        launch = node.site.launch
        self._accelerators = accelerators
        if launch.watch.hang_timeout_s > 0:
            loop.every(decide_period_s(launch.watch.hang_timeout_s), self.sample)

    def sample(self) -> None:
        """Tell the leader what the ranks do; nothing between attempts."""
        folder, site = self._node.folder, self._node.site
        if folder is None:
            return
        if folder.number != self._attempt:
            self._attempt, self._reports = folder.number, {}
        ranks = sample_ranks(folder, self._node.live_ranks, self._reports, site.run)
        percent = self._device_percent()
        for rank in ranks:
            rank["device_percent"] = percent
            rank["raised"] = folder.error(rank["rank"]).exists()
        self._report({"say": "activity", "attempt": folder.number, "ranks": ranks})

    def _device_percent(self) -> float | None:
        """Of the busiest device that this node's ranks may use; None where nothing tells."""
        visible = self._node.site.launch.devices_of(self._node.site.index)
        devices = self._accelerators.sample()
        known = [device for device in devices if device["id"] in visible] or devices
        return max((device["use_percent"] for device in known if device["use_percent"] is not None), default=None)

    def take(self, order: Mapping[str, Any]) -> None:
        """Take stacks of the ranks that the order names, or of all."""
        folder, live = self._node.folder, self._node.live_ranks
        wanted = order.get("ranks")
        chosen = {rank: pid for rank, pid in live.items() if wanted is None or rank in wanted}
        answer = {"say": "stacks", "attempt": order["attempt"], "id": order["id"]}
        if folder is None or folder.number != order["attempt"]:
            self._report({**answer, "ranks": []})
            return
        for rank in chosen:
            ask_for_flight(folder, rank)
        Taking(
            self._loop,
            folder,
            chosen,
            order=order,
            pyspy=find_pyspy(self._node.site.launch.python),
            helpers=self._node.helpers,
            on_done=lambda ranks: self._report({**answer, "ranks": [_with_flight(folder, rank) for rank in ranks]}),
        )


def _with_flight(folder: AttemptDir, rank: dict[str, Any]) -> dict[str, Any]:
    flight, note = read_flight(folder, rank["rank"])
    return {**rank, "flight": None if flight is None else flight.to_dict(), "flight_note": note}
