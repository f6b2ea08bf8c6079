"""The time of an attempt that runs: the notice, the limit, and what ranks that end in between have meant by it.

Two things may limit it: what the spec says, and when a scheduler takes the machines back. Standard library only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypedDict

from gangline.agent.allocation import Allocation
from gangline.agent.attempt import Attempt, Ending
from gangline.agent.gangfile import name_ranks
from gangline.agent.gangwire import Message
from gangline.agent.loop import Loop, Timer
from gangline.domain.errors import GanglineError
from gangline.domain.phase import Reason
from gangline.domain.spec import NoticeSignal, StopPolicy
from gangline.rundir.files import read_json
from gangline.rundir.layout import SIGNALLED, AttemptDir

__all__ = ["AttemptClock", "Limit", "decide_completion", "decide_limit", "read_told"]

_LONGEST_NOTICE_S = 60.0
_CLOSING_S = 5.0
"""What a gang needs, after its ranks have ended, to say how."""
_EARLY_S = 90.0
"""How much earlier than asked for a scheduler may say that the end is near."""
_SLACK_S = 5.0
_SAME_S = 30.0
"""Ends that are closer together are the same one, told by two clocks: schedulers count in minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """When an attempt has to end."""

    after_s: float
    """From when the limit was decided on."""
    notice_s: float
    """How long before that ranks are told."""
    words: str
    from_outside: bool = False
    """The machines are taken back: what goes on goes on elsewhere."""


def decide_limit(
    policy: StopPolicy, lease: Allocation, now: float, *, spent_s: float = 0.0, granted: float | None = None
) -> Limit | None:
    """What ends first: the time that the spec gives an attempt, or that of the machines; None: neither is known.

    Args:
        spent_s: how long the attempt has run.
        granted: when the machines were to be taken back at first, where that was changed since. A person who gives the
            job more time means the run; without any end, its own time is up to that person, too.
    """
    own = None
    if policy.time_limit_s is not None and (lease.end is not None or granted is None):
        more_s = 0.0 if granted is None or lease.end is None else max(0.0, lease.end - granted)
        words = f"The time limit of {policy.time_limit_s + more_s:g} s"
        after_s = max(0.0, policy.time_limit_s + more_s - spent_s)
        own = Limit(after_s=after_s, notice_s=min(policy.notice_s(), after_s), words=words)
    if lease.end is None:
        return own
    left_s = max(0.0, lease.end - now)
    after_s = left_s - min(policy.grace_s + _CLOSING_S, left_s / 10)
    if own is not None and own.after_s <= after_s:
        return own
    notice_s = policy.time_limit_notice_s
    notice_s = min(_LONGEST_NOTICE_S, after_s / 2) if notice_s is None else min(notice_s, after_s)
    words = "The end of the job's time"
    return Limit(after_s=after_s, notice_s=notice_s, words=words, from_outside=True)


class AttemptClock:
    """Runs from `begin` to `end` of an attempt; without any limit it does nothing.

    Args:
        lease: how long the machines are there.
        send: tells all nodes.
        on_limit: the time is over, and the attempt is to end like this.
    """

    def __init__(
        self,
        policy: StopPolicy,
        lease: Allocation,
        loop: Loop,
        *,
        send: Callable[[Message], None],
        warn: Callable[[str], None],
        on_limit: Callable[[Ending], None],
    ) -> None:
        self._policy = policy
        self._lease = lease
        self._granted: float | None = None
        self._loop = loop
        self._send = send
        self._warn = warn
        self._on_limit = on_limit
        self._timers: list[Timer] = []
        self._attempt: Attempt | None = None
        self._began = 0.0
        self.limit: Limit | None = None
        """Of the attempt that runs."""

    def begin(self, attempt: Attempt) -> None:
        """All ranks have started."""
        self._attempt, self._began = attempt, time.monotonic()
        self._plan(decide_limit(self._policy, self._lease, time.time(), granted=self._granted))

    def end(self) -> None:
        """The attempt is over."""
        self._cancel()
        self._attempt = self.limit = None

    def warned(self) -> None:
        """The scheduler says that the end is near; where its time was cut, the clock did not know that."""
        if self._lease.notice_s is None or self._attempt is None or self._attempt.noticed is not None:
            return
        now, notice_s = time.time(), self._lease.notice_s
        if self._lease.end is not None and self._lease.end <= now + notice_s + _EARLY_S:
            return  # as the clock has it
        limit = decide_limit(self._policy, Allocation(end=now + notice_s), now)
        if limit is not None and limit.from_outside:
            self._plan(limit)

    def moved(self, end: float | None) -> None:
        """Somebody has given the machines more time, or less; None: without an end."""
        known, now = self._lease.end, time.time()
        if end == known or (end is not None and known is not None and abs(end - known) < _SAME_S):
            return
        self._granted = known if self._granted is None else self._granted
        self._lease = replace(self._lease, end=end)
        if known is not None or self._granted is not None:
            text = "has no end any more" if end is None else f"ends in {max(0.0, end - now):.0f} s now"
            self._warn(f"The job's time was changed by its scheduler: it {text}.")
        attempt = self._attempt
        if attempt is not None and attempt.ending is None:
            spent_s = time.monotonic() - self._began
            self._plan(decide_limit(self._policy, self._lease, now, spent_s=spent_s, granted=self._granted))

    def is_over(self) -> bool:
        """Whether the machines are being taken back because their time is over."""
        return self._lease.end is not None and time.time() > self._lease.end - _SLACK_S

    def _plan(self, limit: Limit | None) -> None:
        self._cancel()
        self.limit = limit
        attempt = self._attempt
        if limit is not None and attempt is not None:
            self._timers = [
                self._loop.after(limit.after_s, lambda: self._reach_limit(attempt, limit)),
                self._loop.after(limit.after_s - limit.notice_s, lambda: self._give_notice(attempt, limit)),
            ]

    def _cancel(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers = []

    def _give_notice(self, attempt: Attempt, limit: Limit) -> None:
        """Tell ranks that the time limit is near. No signal is sent: a script that does not ask may work to the end."""
        if attempt.ending is None:
            attempt.noticed = time.time()
            notice = {"deadline": attempt.noticed + limit.notice_s, "notice_s": limit.notice_s}
            self._send({"do": "notice", "attempt": attempt.number, "cause": "time_limit", **notice})

    def _reach_limit(self, attempt: Attempt, limit: Limit) -> None:
        self._warn(f"{limit.words} is reached; ranks are told to stop.")
        left = sorted(rank for rank, one in attempt.ranks.items() if one.ended is None)
        told = f", and {name_ranks(left)} had not ended although told {limit.notice_s:.3g} s before"
        message = f"{limit.words} was reached{told if left else ''}."
        self._on_limit(render_ending(limit, message, time.time()))


def render_ending(limit: Limit, message: str, now: float) -> Ending:
    """How an attempt ends whose time is over."""
    return Ending(
        cause="time_limit", time=now, reason=Reason.TIME_LIMIT, message=message, from_outside=limit.from_outside
    )


def decide_completion(
    policy: StopPolicy,
    limit: Limit | None,
    attempt: Attempt,
    *,
    agreed: bool,
    now: float,
    signalled: int | None = None,
) -> Ending:
    """All ranks have ended with 0: they are done, or ended because they were told that time is short.

    Args:
        agreed: ranks have agreed on where to stop (`gangline.should_stop()`).
        now: wall clock.
        signalled: the rank to which SIGTERM came from outside, so that it told the others.
    """
    if agreed and signalled is not None and not attempt.is_complete():
        message = f"SIGTERM came to rank {signalled} from outside: all ranks were told, and ended by themselves."
        return Ending(cause="preemption", time=now, reason=Reason.PREEMPTED, message=message)
    told = agreed or policy.notice_signal is not NoticeSignal.NONE
    if limit is None or attempt.noticed is None or not told or attempt.is_complete():
        return Ending(cause="success", time=now)
    return render_ending(limit, f"{limit.words} was near: all ranks were told, and ended by themselves.", now)


class Told(TypedDict):
    """What ranks have left of a notice; see `decide_completion`."""

    agreed: bool
    signalled: int | None


def read_told(folder: AttemptDir) -> Told:
    """What ranks that asked `gangline.should_stop()` have made of a notice, or of a signal of which one told."""
    told = Told(agreed=folder.stop_at.exists(), signalled=None)
    if told["agreed"]:
        with suppress(OSError, GanglineError):
            notice = read_json(folder.notice) or {}
            if notice.get("kind") == SIGNALLED and isinstance(notice.get("rank"), int):
                told["signalled"] = notice["rank"]
    return told
