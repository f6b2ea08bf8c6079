"""The time of an attempt that runs: the notice, the limit, and what ranks that end in between have meant by it.

Standard library only.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from gangline.agent.attempt import Attempt, Ending
from gangline.agent.gangfile import name_ranks
from gangline.agent.gangwire import Message
from gangline.agent.loop import Loop, Timer
from gangline.domain.phase import Reason
from gangline.domain.spec import NoticeSignal, StopPolicy

__all__ = ["AttemptClock", "decide_completion"]


class AttemptClock:
    """Runs from `begin` to `end` of an attempt; without a time limit it does nothing.

    Args:
        send: tells all nodes.
        on_limit: the time is over, and the attempt is to end like this.
    """

    def __init__(
        self,
        policy: StopPolicy,
        loop: Loop,
        *,
        send: Callable[[Message], None],
        warn: Callable[[str], None],
        on_limit: Callable[[Ending], None],
    ) -> None:
        self._policy = policy
        self._loop = loop
        self._send = send
        self._warn = warn
        self._on_limit = on_limit
        self._timers: list[Timer] = []

    def begin(self, attempt: Attempt) -> None:
        """All ranks have started."""
        limit_s = self._policy.time_limit_s
        if limit_s is not None:
            notice_s = self._policy.notice_s()
            self._timers = [
                self._loop.after(limit_s, lambda: self._reach_limit(attempt)),
                self._loop.after(limit_s - notice_s, lambda: self._give_notice(attempt, notice_s)),
            ]

    def end(self) -> None:
        """The attempt is over."""
        for timer in self._timers:
            timer.cancel()
        self._timers = []

    def _give_notice(self, attempt: Attempt, notice_s: float) -> None:
        """Tell ranks that the time limit is near. No signal is sent: a script that does not ask may work to the end."""
        if attempt.ending is None:
            attempt.noticed = time.time()
            notice = {"cause": "time_limit", "deadline": attempt.noticed + notice_s, "notice_s": notice_s}
            self._send({"do": "notice", "attempt": attempt.number, **notice})

    def _reach_limit(self, attempt: Attempt) -> None:
        limit = f"{self._policy.time_limit_s:g} s"
        self._warn(f"The time limit of {limit} is reached; ranks are told to stop.")
        left = sorted(rank for rank, one in attempt.ranks.items() if one.ended is None)
        told = f", and {name_ranks(left)} had not ended although told {self._policy.notice_s():g} s before"
        message = f"The time limit of {limit} was reached{told if left else ''}."
        self._on_limit(Ending(cause="time_limit", time=time.time(), reason=Reason.TIME_LIMIT, message=message))


def decide_completion(policy: StopPolicy, attempt: Attempt, *, agreed: bool, now: float) -> Ending:
    """All ranks have ended with 0: they are done, or ended because they were told that time is short.

    Args:
        agreed: ranks have agreed on where to stop (`gangline.should_stop()`).
        now: wall clock.
    """
    told = agreed or policy.notice_signal is not NoticeSignal.NONE
    if attempt.noticed is None or not told or attempt.is_complete():
        return Ending(cause="success", time=now)
    limit = f"{policy.time_limit_s:g} s"
    text = f"The time limit of {limit} was near: all ranks were told, and ended by themselves."
    return Ending(cause="time_limit", time=now, reason=Reason.TIME_LIMIT, message=text)
