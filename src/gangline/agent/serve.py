"""Puts the parts of one agent together, and serves until its launch is over. Standard library only."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from gangline.agent.accelerators import Accelerators
from gangline.agent.addresses import LOOPBACK
from gangline.agent.checks import NodeChecks
from gangline.agent.choose import ReasonedStarter
from gangline.agent.diskroom import DiskRoom
from gangline.agent.follower import Follower
from gangline.agent.hostinfo import EnvironmentProbe
from gangline.agent.leader import Leader
from gangline.agent.logkeeper import LOOK_S
from gangline.agent.loop import Loop
from gangline.agent.node import Node
from gangline.agent.pacing import NodePace
from gangline.agent.sampler import SystemJournal
from gangline.agent.site import Journal, Site
from gangline.agent.watch.nodewatch import NodeWatch

__all__ = ["Agent"]

_SAMPLE_S = 2.0
_ASK_AFTER_S = 2.0


class Agent:
    """One agent, from the opened starter to the end of its launch."""

    def __init__(self, site: Site, starter: ReasonedStarter, *, spared: int) -> None:
        self._site = site
        self._starter = starter
        self._spared = spared
        self._loop = Loop()
        self._probe = EnvironmentProbe(site, self._loop)
        self._accelerators: Accelerators | None = None

    def serve(self, advertised: str | None) -> int:
        """Serve until the launch is over; the exit code."""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._probe.begin()
        actor = self._lead(advertised) if self._site.index == 0 else self._follow(advertised)
        try:
            return self._loop.run()
        finally:
            actor.close()
            self._probe.finish()
            if self._accelerators is not None:
                self._accelerators.close()

    def _lead(self, advertised: str | None) -> Leader:
        site = replace(self._site, address=advertised or LOOPBACK)
        leader = Leader(site, self._loop, advertised=advertised)
        # Reports wait for the loop's next turn, so that the node is never called in the middle of its own work.
        node = self._node(site, report=self._later(lambda said: leader.hear(0, said)))
        for number in (signal.SIGTERM, signal.SIGINT):
            said = {"say": "signalled", "signal": number.name}
            self._loop.on_signal(number, partial(leader.hear, 0, said))
        leader.begin(node)
        return leader

    def _follow(self, advertised: str | None) -> Follower:
        follower = Follower(self._site, self._loop, advertised=advertised)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.on_signal(number, partial(follower.on_signal, number.name))
        follower.begin(lambda address: self._node(replace(self._site, address=address), report=follower.report))
        return follower

    def _later(self, call: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
        def report(said: dict[str, Any]) -> None:
            self._loop.after(0.0, lambda: call(said))

        return report

    def _node(self, site: Site, report: Callable[[dict[str, Any]], None]) -> Node:
        """The node's ranks, and everything that watches them beside."""
        journal = Journal(site.run, site.index)
        probe, helpers = self._probe, self._probe.helpers
        helpers.add(self._spared)
        node = Node(site, loop=self._loop, starter=self._starter, journal=journal, report=report, helpers=helpers)
        probe.address, node.compare = site.address, probe.compare
        self._accelerators = Accelerators(site.launch.device_kind, self._loop, helpers=node.helpers)
        node.checks = NodeChecks(site, self._loop, helpers=node.helpers, report=report)
        system = SystemJournal(site.index, self._accelerators)
        NodePace(node, system, self._loop, report)
        # What the start does not wait for is asked once the ranks are past their own start.
        node.on_started = lambda _attempt: self._loop.after(_ASK_AFTER_S, probe.ask_the_rest)
        NodeWatch(node, self._loop, report, accelerators=self._accelerators)
        self._loop.after(LOOK_S, lambda: self._keep_logs(node))
        self._loop.every(_SAMPLE_S, node.reap_orphans)
        if site.index == 0:  # all nodes share the run directory
            room = DiskRoom(site.run.path, node.warn)
            self._loop.every(_SAMPLE_S, lambda: room.look() if node.folder is not None else None)
        self._loop.every(_SAMPLE_S, lambda: system.sample(node.folder, node.live_ranks))
        return node

    def _keep_logs(self, node: Node) -> None:
        """Again and again; sooner while ranks write fast."""
        self._loop.after(node.keep_logs(), lambda: self._keep_logs(node))
