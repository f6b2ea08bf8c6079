"""How a gang comes together: who is waited for, for how long, and whether it starts without those that do not come.

Standard library only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from gangline.agent.addresses import UNREACHED
from gangline.agent.attempt import Attempt
from gangline.agent.loop import Loop, Timer
from gangline.agent.members import Members
from gangline.agent.site import Site
from gangline.rundir.journal import read_journal

__all__ = ["Assembly"]

_LOOK_S = 1.0
_UNREACHED_S = 20.0
"""How long an agent may try in vain to reach its leader; at most a quarter of the time to start."""
_CHARGED_S_PER_NODE = 0.5


class Assembly:
    """Waits for the gang of one attempt, from `begin` until all ranks have started (`end`).

    Args:
        warn: takes what people should know.
        fail: the gang will not be complete; takes why.
        go_on: an elastic gang is complete without those that did not come.
    """

    def __init__(
        self,
        site: Site,
        loop: Loop,
        members: Members,
        *,
        warn: Callable[[str], None],
        fail: Callable[[str], None],
        go_on: Callable[[], None],
    ) -> None:
        self._site = site
        self._stop = site.launch.stop
        self._loop = loop
        self._members = members
        self._warn = warn
        self._fail = fail
        self._go_on = go_on
        self._attempt: Attempt | None = None
        """The one whose gang gathers; None once it is complete."""
        self._timer: Timer | None = None
        self._unreached: dict[int, float] = {}
        """When it was first seen, by node, that it does not reach the leader."""
        if site.launch.nodes > 1:
            loop.every(_LOOK_S, self._look_for_unreached)

    def begin(self, attempt: Attempt) -> None:
        """Wait for the members of an attempt, and then for its ranks to start."""
        self._attempt, self._unreached = attempt, {}
        self._timer = self._loop.after(self._limit_s(), lambda: self._on_timeout(attempt))

    def seal(self) -> None:
        """The gang is complete: nobody else is let in. The time to start goes on."""
        self._members.sealed = True
        self._attempt = None

    def end(self) -> None:
        """Wait no more: all ranks have started, or the attempt is over."""
        self._attempt = None
        if self._timer is not None:
            self._timer.cancel()

    def _limit_s(self) -> float:
        """How long a gang may take to assemble; more for a large one, whose agents start one after the other."""
        return self._stop.start_timeout_s + _CHARGED_S_PER_NODE * self._site.launch.nodes

    def _on_timeout(self, attempt: Attempt) -> None:
        missing = self._members.missing
        if self._attempt is not None and self._may_go_on_without(missing):
            self._go_on_without(missing, attempt)
            return
        waited = f"{int(self._limit_s())} s"
        who = f"nodes {missing} did not join" if missing else "the ranks were not started"
        self._fail(f"The gang was not complete after {waited}: {who}.{self._last_words(missing, attempt)}")

    def _may_go_on_without(self, nodes: Sequence[int]) -> bool:
        """An elastic gang that is large enough without them."""
        launch = self._site.launch
        return bool(nodes) and launch.nodes - len(self._members.lost) - len(nodes) >= launch.fewest_nodes

    def _go_on_without(self, missing: Sequence[int], attempt: Attempt) -> None:
        told = self._last_words(missing, attempt)
        waited = f"{int(self._limit_s())} s"
        self._warn(f"Nodes {missing} did not join within {waited}; the gang starts without them.{told}")
        self._members.give_up_missing()
        attempt.shape = self._site.launch.shape(self._members.lost)
        self._timer = self._loop.after(self._stop.start_timeout_s, lambda: self._on_timeout(attempt))
        self._go_on()

    def _look_for_unreached(self) -> None:
        """End an attempt for which a node waits in vain: it is there, and does not reach the leader."""
        attempt = self._attempt
        if attempt is None:
            return
        now = time.monotonic()
        for node in self._members.missing:
            told = [text for text in self._words_of(node, attempt) if UNREACHED in text]
            since = self._unreached.setdefault(node, now) if told else now
            if now - since > min(_UNREACHED_S, self._stop.start_timeout_s / 4):
                self._fail(f"The gang cannot assemble. {told[0]}")
                return

    def _last_words(self, nodes: Sequence[int], attempt: Attempt) -> str:
        return "".join(f" {text}" for node in nodes for text in self._words_of(node, attempt))

    def _words_of(self, node: int, attempt: Attempt) -> list[str]:
        """What a node that did not join has left in its journal, where the two share a file system."""
        events = read_journal(self._site.run.attempt(attempt.number).events(node))
        return [event["text"] for event in events if event["kind"] == "warning"][-1:]
