"""Puts the parts of one agent together, and serves until its launch is over. Standard library only."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gangline.agent.addresses import LOOPBACK
from gangline.agent.choose import ReasonedStarter
from gangline.agent.follower import Follower
from gangline.agent.guardian import end_unguarded
from gangline.agent.hostinfo import EnvironmentProbe
from gangline.agent.leader import Leader
from gangline.agent.logkeeper import LOOK_S
from gangline.agent.loop import Loop
from gangline.agent.node import Node
from gangline.agent.site import NEAR_THE_END, Journal, Site

if TYPE_CHECKING:
    from gangline.agent.beside import Beside

__all__ = ["Agent"]

_SIGNALS = (signal.SIGTERM, signal.SIGINT, NEAR_THE_END)
_FOR_SCRIPTS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
"""What batch scripts ask for ahead of their end (`--signal=B:USR1@120`), and handle."""
_REAP_S = 2.0
_WATCH_AFTER_S = 0.2
_ASK_AFTER_S = 2.0


class Agent:
    """One agent, from the opened starter to the end of its launch.

    Args:
        guardian: what `guardian.fork_agent` returned.
    """

    def __init__(self, site: Site, starter: ReasonedStarter, *, guardian: int) -> None:
        self._site = site
        self._starter = starter
        self._loop = Loop()
        self._loop.watch(guardian, end_unguarded)
        self._probe = EnvironmentProbe(site, self._loop)
        self._beside: Beside | None = None

    def serve(self, advertised: str | None) -> int:
        """Serve until the launch is over; the exit code."""
        self._probe.begin()
        actor = self._lead(advertised) if self._site.index == 0 else self._follow(advertised)
        try:
            return self._loop.run()
        finally:
            actor.close()
            self._probe.finish()
            if self._beside is not None:
                self._beside.close()

    def _lead(self, advertised: str | None) -> Leader:
        site = replace(self._site, address=advertised or LOOPBACK)
        leader = Leader(site, self._loop, advertised=advertised)
        # Reports wait for the loop's next turn, so that the node is never called in the middle of its own work.
        node = self._node(site, report=self._later(lambda said: leader.hear(0, said)))
        for number in _SIGNALS:
            said = {"say": "signalled", "signal": number.name}
            self._loop.on_signal(number, partial(leader.hear, 0, said))
        if site.launch.batch is not None:
            for number in _FOR_SCRIPTS:
                self._loop.on_signal(number, partial(node.pass_on, number))
        leader.begin(node)
        return leader

    def _follow(self, advertised: str | None) -> Follower:
        follower = Follower(self._site, self._loop, advertised=advertised)
        for number in _SIGNALS:
            self._loop.on_signal(number, partial(follower.on_signal, number.name))
        follower.begin(lambda address: self._node(replace(self._site, address=address), report=follower.report))
        return follower

    def _later(self, call: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
        def report(said: dict[str, Any]) -> None:
            self._loop.after(0.0, lambda: call(said))

        return report

    def _node(self, site: Site, report: Callable[[dict[str, Any]], None]) -> Node:
        """The node's ranks, and what goes on beside them."""
        probe, loop = self._probe, self._loop
        helpers = probe.helpers
        journal = Journal(site.run, site.index)
        node = Node(site, loop=loop, starter=self._starter, journal=journal, report=report, helpers=helpers)
        probe.address, node.compare = site.address, probe.compare
        if site.launch.preflight.checks:
            from gangline.agent.checks import NodeChecks  # noqa: PLC0415 - few runs ask for them

            node.checks = NodeChecks(site, loop, helpers=helpers, report=report)
        node.on_started = lambda _attempt: self._on_started(node, report)
        node.on_stacks = lambda order: self._watch(node, report).take_stacks(order)
        loop.after(LOOK_S, lambda: self._keep_logs(node))
        loop.every(_REAP_S, node.reap_orphans)
        return node

    def _on_started(self, node: Node, report: Callable[[dict[str, Any]], None]) -> None:
        """What the start does not wait for, once the ranks are past their own start."""

        def watch() -> None:
            self._watch(node, report)

        self._loop.after(_WATCH_AFTER_S, watch)
        self._loop.after(_ASK_AFTER_S, self._probe.ask_the_rest)

    def _watch(self, node: Node, report: Callable[[dict[str, Any]], None]) -> Beside:
        if self._beside is None:
            from gangline.agent.beside import Beside  # noqa: PLC0415 - see `_on_started`

            self._beside = Beside(node, self._loop, report)
        return self._beside

    def _keep_logs(self, node: Node) -> None:
        """Again and again; sooner while ranks write fast."""
        self._loop.after(node.keep_logs(), lambda: self._keep_logs(node))
