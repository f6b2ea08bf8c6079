"""The end of an attempt on one node: what `teardown` decides is done, until no process is left.

Standard library only.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from gangline.agent.lastlook import LOOK_AGAIN_S, LastLook
from gangline.agent.localattempt import LocalAttempt
from gangline.agent.loop import Loop
from gangline.agent.processes import Process, find_descendants, is_python, reap, send
from gangline.agent.site import Journal
from gangline.agent.teardown import FAILURE, NOTICES, SUCCESS, Teardown, TreeView, notice_targets
from gangline.domain.spec import NoticeSignal, StopPolicy
from gangline.rundir.files import write_json

__all__ = ["Clearing"]

_TICK_S = 0.005
_SLOWEST_TICK_S = 0.1
_STUCK_AFTER_S = 60.0


class Clearing:
    """Ends attempts, one at a time.

    Args:
        spared: pids of the agent's own children, which outlive an attempt.
        on_cleared: takes the attempt, and the pids that even SIGKILL did not end.
    """

    def __init__(
        self,
        policy: StopPolicy,
        loop: Loop,
        *,
        journal: Journal,
        spared: Callable[[], frozenset[int]],
        on_cleared: Callable[[LocalAttempt, list[int]], None],
    ) -> None:
        self._policy = policy
        self._loop = loop
        self._journal = journal
        self._spared = spared
        self._on_cleared = on_cleared

    def notice(self, attempt: LocalAttempt, message: Mapping[str, Any]) -> None:
        """Ranks that ask `gangline.should_stop()` are told, and others by a signal if the spec names one."""
        self._journal.write("notice", cause=message["cause"], notice_s=message["notice_s"])
        self._write_notice(attempt, message["cause"], message["deadline"])
        wanted = self._policy.notice_signal
        if wanted is not NoticeSignal.NONE:
            send(notice_targets(self._view(attempt)), signal.Signals[f"SIG{wanted}"])

    def stop(self, attempt: LocalAttempt, message: Mapping[str, Any]) -> None:
        """Begin to end an attempt, or end one sooner that is being ended."""
        cause, grace_s = message["cause"], float(message["grace_s"])
        deadline = time.monotonic() + grace_s
        if cause in NOTICES:
            self._write_notice(attempt, cause, message["deadline"])
        if cause != SUCCESS and attempt.ranks:
            self._journal.write("stopping", cause=cause, grace_s=grace_s)
        if attempt.teardown is None:
            leftover_s = self._policy.failure_grace_s
            attempt.stopping_since = time.monotonic()
            _note_log_ends(attempt)
            if cause == FAILURE:
                attempt.last_look = self._look_last(attempt)
            attempt.teardown = Teardown(cause=cause, deadline=deadline, leftover_grace_s=leftover_s)
        else:
            attempt.teardown.escalate(cause, deadline)
        self.look(attempt)

    def look(self, attempt: LocalAttempt) -> None:
        """One look at what is left of an attempt that is being ended, and the signals that it calls for."""
        if attempt.teardown is None or attempt.cleared:
            return
        if attempt.last_look is not None and attempt.live_ranks and not attempt.last_look.is_over():
            self._look_in(attempt, LOOK_AGAIN_S)
            return
        view = self._view(attempt)
        now = time.monotonic()
        overdue_s = now - attempt.teardown.deadline
        if not view.alive and not attempt.live_ranks:
            self._clear(attempt, stuck=[])
        elif overdue_s > _STUCK_AFTER_S:
            self._clear(attempt, stuck=[process.pid for process in view.alive])
        else:
            self._signal(attempt, attempt.teardown, view, now)
            self._tick(attempt, now)

    def _write_notice(self, attempt: LocalAttempt, cause: str, deadline: float) -> None:
        """Before the first signal: a training loop that is woken by the signal must find it."""
        try:
            write_json(attempt.folder.notice, {"kind": cause, "time": time.time(), "deadline": deadline})
        except OSError as error:
            self._warn(f"The notice could not be written: {error}.")

    def _view(self, attempt: LocalAttempt) -> TreeView:
        me, spared = os.getpid(), self._spared()
        ranks = {pid for pid, local in attempt.ranks.items() if not local.ended}
        found = find_descendants(me, spared=spared)
        reap(found, parent=me, known=frozenset(attempt.ranks) | spared)
        alive = [process for process in found if not process.dead]
        notice = attempt.teardown is None or attempt.teardown.cause in NOTICES
        return TreeView(
            alive=alive,
            ranks=ranks,
            cooperative={pid for pid in ranks if attempt.folder.cooperative(attempt.ranks[pid].rank).exists()},
            kept=_below(alive, attempt.supporters) if attempt.ranks else (),
            python={process.pid for process in alive if is_python(process.pid)} if notice else set(),
        )

    def _signal(self, attempt: LocalAttempt, teardown: Teardown, view: TreeView, now: float) -> None:
        orders = teardown.decide(view, now)
        left = sorted(pid for pid, number in orders.items() if number == signal.SIGTERM and pid not in view.kept)
        if teardown.cause == SUCCESS and left and not attempt.supporters:
            self._warn(f"All ranks exited with 0 and left processes behind, which are ended: {left}.")
        for number in set(orders.values()):
            taken = send([pid for pid, ordered in orders.items() if ordered == number], number)
            if number == signal.SIGKILL and taken and now >= teardown.deadline and not attempt.killed:
                attempt.killed = True
                self._journal.write("killed", pids=taken)

    def _tick(self, attempt: LocalAttempt, now: float) -> None:
        """Look again, soon at first: exits of ranks are told, those of their children have to be looked for."""
        self._look_in(attempt, min(_SLOWEST_TICK_S, max(_TICK_S, (now - attempt.stopping_since) / 10)))

    def _look_in(self, attempt: LocalAttempt, pause_s: float) -> None:
        if attempt.tick is not None:
            attempt.tick.cancel()
        attempt.tick = self._loop.after(pause_s, lambda: self.look(attempt))

    def _look_last(self, attempt: LocalAttempt) -> LastLook | None:
        return LastLook(attempt.folder, attempt.live_ranks) if attempt.live_ranks else None

    def _clear(self, attempt: LocalAttempt, *, stuck: list[int]) -> None:
        attempt.cleared = True
        if attempt.tick is not None:
            attempt.tick.cancel()
        if stuck:
            self._warn(f"Processes {stuck} did not end even by SIGKILL; this node should be looked at.")
        self._on_cleared(attempt, stuck)

    def _warn(self, text: str) -> None:
        self._journal.write("warning", text=text)


def _below(alive: Sequence[Process], roots: Collection[int]) -> set[int]:
    found = set(roots)
    for process in alive:  # parents come first
        if process.parent in found:
            found.add(process.pid)
    return found if roots else set()


def _note_log_ends(attempt: LocalAttempt) -> None:
    """What a rank prints from now on, it may print because it was told to end."""
    for rank in attempt.live_ranks:
        with suppress(OSError):
            found = attempt.folder.log(rank).stat()
            attempt.log_ends[rank] = (found.st_size, found.st_mtime)
