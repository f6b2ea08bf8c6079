"""The leader's eyes on ranks that run: whether they hang, and whether one holds the others up.

What looks is imported when the ranks have started, or are asked for stacks: a start does not wait for it.
Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gangline.agent.attempt import Attempt, Hang
from gangline.agent.gangwire import Message
from gangline.agent.loop import Loop
from gangline.agent.members import Member
from gangline.agent.site import Site

if TYPE_CHECKING:
    from gangline.agent.control import StacksRequest
    from gangline.agent.pacing import StragglerWatch
    from gangline.agent.watch.watchdog import Watchdog, Writer

__all__ = ["GangWatch"]


class GangWatch:
    """Passes what nodes report of running ranks to the watchdog and to the watch for stragglers.

    Args:
        send: tells all nodes.
        write: records an event.
        on_hang: the gang hangs, and the policy says that the attempt ends.
    """

    def __init__(
        self,
        site: Site,
        loop: Loop,
        *,
        send: Callable[[Message], None],
        write: Writer,
        on_hang: Callable[[Hang | None], None],
    ) -> None:
        self._site = site
        self._loop = loop
        self._send = send
        self._write = write
        self._on_hang = on_hang
        self._dog: Watchdog | None = None
        self._stragglers: StragglerWatch | None = None

    def begin(self, attempt: Attempt) -> None:
        """All ranks of an attempt have started."""
        self._watchdog().begin(attempt)

    def end(self) -> None:
        """The attempt is being ended."""
        if self._dog is not None:
            self._dog.end()

    def rank_ended(self, rank: int) -> None:
        """A rank has ended by itself, with 0."""
        if self._dog is not None:
            self._dog.rank_ended(rank)

    def ask(self, request: StacksRequest, *, newest: int) -> None:
        """Somebody wants to see the stacks; see `Watchdog.ask`."""
        self._watchdog().ask(request, newest=newest)

    def take(self, message: Mapping[str, Any], member: Member) -> None:
        """A node's report: `activity`, `stacks` or `pace`."""
        if message["say"] == "pace":
            self._straggler_watch().take(message, member)
        elif message["say"] == "activity":
            self._watchdog().take_activity(member.node, message)
        else:
            self._watchdog().take_stacks(member.node, message)

    def _watchdog(self) -> Watchdog:
        if self._dog is None:
            from gangline.agent.watch.watchdog import Watchdog  # noqa: PLC0415 - the start does not wait for it

            self._dog = Watchdog(self._site, self._loop, send=self._send, write=self._write, on_hang=self._on_hang)
        return self._dog

    def _straggler_watch(self) -> StragglerWatch:
        if self._stragglers is None:
            from gangline.agent.pacing import StragglerWatch  # noqa: PLC0415 - the same

            self._stragglers = StragglerWatch(self._site.launch.watch, self._write)
        return self._stragglers
