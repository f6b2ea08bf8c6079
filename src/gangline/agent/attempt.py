"""What is known of one attempt, and what follows from it. Pure; standard library only."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gangline.agent.launchspec import Shape
from gangline.agent.memory import Memory
from gangline.agent.storage import Resume
from gangline.domain.phase import Reason

if TYPE_CHECKING:
    from gangline.agent.classify import RankEnd

__all__ = ["Attempt", "Ending", "Hang", "RankRecord"]

_LEFT_OTHERS = "ended with exit code 0 while the others wait for it"
_TOLD_TOGETHER_S = 5.0
_GOING_S = 3.0
"""How long the end of a process may be seen after others have lost it: it closes its files, frees its memory."""


@dataclass(slots=True, kw_only=True)
class RankRecord:
    """One rank of one attempt."""

    rank: int
    node: int
    host: str
    pid: int | None = None
    started: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    ended_by: str | None = None
    """`self` or `platform`; None while it runs."""
    peak_rss_bytes: int | None = None
    error: Mapping[str, Any] | None = None
    printed: Mapping[str, Any] | None = None
    """The exception at the end of its log, of a rank that the platform ended: it may have got over it."""
    left: float | None = None
    """When its interpreter began to end without an exception, as far as it has told; wall clock."""
    left_code: int | None = None
    """What it was to exit with; None: that is not known."""
    log_tail: str = ""
    step: int | None = None
    """The newest that it reported."""
    total: int | None = None
    phase: str | None = None
    """Name of the `gangline.phase` that it was in."""
    place: str | None = None
    """Where it was when a failure ended the attempt: `waiting in all_reduce (train.py:41)`."""
    lost_runtime: bool = False
    """The runtime of its strategy has ended it without a word, as when the job, or a daemon of it, is gone."""
    kernel_oom_kills: int = 0
    memory: Memory | None = None
    """Of its node, just after it had ended."""

    @property
    def failed(self) -> bool:
        """It ended, and not well."""
        return self.ended is not None and bool(self.exit_code or self.signal)

    @property
    def lost_a_peer(self) -> bool:
        """Its exception says that another rank is gone, or did not come."""
        from gangline.agent.classify import is_consequence  # noqa: PLC0415 - nothing has failed at the start

        return self.lost_runtime or is_consequence(self.end())

    @property
    def waited_in_vain(self) -> bool:
        """Its exception says that it waited for others, longer than its process group allows."""
        from gangline.agent.classify import is_timeout  # noqa: PLC0415 - as above

        return is_timeout(self.end())

    @property
    def how_it_left(self) -> str:
        """What is known of the end of a rank that left early."""
        return "ended with exit code 0" if self.ended_by == "self" else "left its script"

    @property
    def failed_at(self) -> float:
        """When it went wrong: an exception counts from when it was raised, not from when its process was gone."""
        raised = (self.error or {}).get("time")
        return min(self.gone_at, float(raised)) if isinstance(raised, int | float) else self.gone_at

    @property
    def gone_at(self) -> float:
        """When others lost it: the end of a process may be seen long after its interpreter has begun to end."""
        ended = self.ended or 0.0
        return ended if self.left is None else min(ended, self.left)

    def end(self) -> RankEnd:
        """As the classification takes it."""
        from gangline.agent.classify import RankEnd  # noqa: PLC0415 - as above

        return RankEnd(
            rank=self.rank,
            node=self.node,
            host=self.host,
            exit_code=self.exit_code,
            signal=self.signal,
            error=self.error,
            log_tail=self.log_tail,
            peak_rss_bytes=self.peak_rss_bytes,
            kernel_oom_kills=self.kernel_oom_kills,
            memory=self.memory,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """What the watchdog found before it had the attempt ended."""

    message: str
    rank: int | None
    """The one that the others wait for; None where the stacks do not tell."""
    time: float
    """Wall clock."""
    place: str
    """`is in time.sleep (data.py:17)`."""
    stack: str
    """Of the rank's main thread, as a traceback reads."""
    hint: str
    infrastructure: bool
    """What holds the gang up lies outside of its code: a stopped process, storage that does not answer."""
    places: Mapping[int, str] = field(default_factory=dict)
    """Where each rank was that runs: `waiting in all_reduce (train.py:41)`."""
    blocked: bool = False
    """That rank waits in the kernel, for storage or a device of its node."""
    left: bool = False
    """That rank has ended with 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Why an attempt is being ended."""

    cause: str
    """`failure`, `success`, or one of the notices: `stop`, `preemption`, `time_limit`."""
    time: float
    """Wall clock."""
    reason: Reason | None = None
    """None: the first failing rank will tell."""
    message: str = ""
    from_outside: bool = False
    """The machines are taken away: what follows needs other agents."""
    nodes: Mapping[int, str] = field(default_factory=dict)
    """Nodes that are at fault, where it is known, and why: `lost`, or the check that they have failed."""
    hang: Hang | None = None


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One start of the whole gang, as its leader knows it."""

    number: int
    launch: int
    started: float
    shape: Shape
    resume: Resume = field(default_factory=Resume)
    master_addr: str = ""
    master_port: int = 0
    start_mode: str | None = None
    running: float | None = None
    ended: float | None = None
    ranks: dict[int, RankRecord] = field(default_factory=dict)
    ready: dict[int, list[int]] = field(default_factory=dict)
    """Ports that each node has set aside, by node: it answered that it can start."""
    hosts: dict[int, str] = field(default_factory=dict)
    """Name of each node's machine, once all have joined."""
    seen: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    """What each node tells of its environment."""
    started_nodes: set[int] = field(default_factory=set)
    cleared: set[int] = field(default_factory=set)
    stuck: dict[int, list[int]] = field(default_factory=dict)
    """Processes that even SIGKILL did not end, by node."""
    ending: Ending | None = None
    supporting: frozenset[int] = frozenset()
    """Ranks that are there for the others; those decide how the attempt ends."""
    lost_code: int | None = None
    """What the strategy's runtime ends ranks with that it has lost."""
    noticed: float | None = None
    """When ranks were told that the time limit is near; wall clock."""

    @property
    def _nodes(self) -> frozenset[int]:
        return frozenset(self.shape.nodes)

    def all_ready(self) -> bool:
        return self._nodes <= self.ready.keys()

    def all_started(self) -> bool:
        return self._nodes <= self.started_nodes

    def all_succeeded(self) -> bool:
        """Every rank has ended by itself, with 0; those that only serve the others need not."""
        return self.all_ended() and not any(record.failed for record in self.ranks.values())

    def all_ended(self) -> bool:
        """Every rank has ended, but those that only serve the others."""
        return len(self.ranks) == self.shape.world_size and all(
            record.ended is not None for record in self.ranks.values() if record.rank not in self.supporting
        )

    def lost_support(self, record: RankRecord) -> bool:
        """Whether this rank was to serve the others, and has left them; who was killed is blamed as any rank."""
        return record.rank in self.supporting and record.signal is None and not self.all_ended()

    def must_end(self, pdb_rank: int | None) -> bool:
        """Some rank has failed, and no person is in the middle of debugging another one."""
        if not any(record.failed for record in self.ranks.values()):
            return False
        debugged = self.ranks.get(pdb_rank) if pdb_rank is not None else None
        return debugged is None or debugged.ended is not None

    def all_cleared(self, lost: frozenset[int] = frozenset()) -> bool:
        """No process of the attempt is left on any node that can be asked."""
        return self._nodes - lost <= self.cleared

    def is_ended_by(self, ending: Ending) -> bool:
        """Whether this is why the attempt ends, and not what was known before.

        A person's stop has the last word. A scheduler that takes its machines back may tell ranks and agents at the
        same moment: ranks that die of its signal are then seen first.
        """
        if self.ending is None:
            return True
        if ending.cause == "stop":
            return self.ending.cause in {"failure", "time_limit"}
        failed = [record for record in self.ranks.values() if record.failed and self._by_itself(record)]
        told = ending.cause in {"preemption", "time_limit"} and self.ending.cause == "failure"
        soon = ending.time - self.ending.time <= _TOLD_TOGETHER_S
        return told and soon and bool(failed) and all(record.signal == signal.SIGTERM for record in failed)

    def first_failure(self) -> RankRecord | None:
        """The rank that failed first, by time; one that the platform ended counts only if it had failed before that.

        A rank that says it lost a peer is a consequence where another one failed: when its exception was raised is
        known, but of a rank that was killed only when its end was seen, which may be later. Where all who failed by
        themselves say so, and nobody left them with 0, a rank that had printed an exception of its own before it was
        told to end is to blame. Of a hang it is the rank that the others wait for.
        """
        if self.ending is not None and self.ending.hang is not None:
            return self._missing_rank(self.ending.hang)
        failed = [record for record in self.ranks.values() if record.failed and self._by_itself(record)]
        failure = min(failed, key=lambda record: (record.lost_a_peer, record.failed_at, record.rank), default=None)
        if failure is None or not failure.lost_a_peer or self._left_before(failure) is not None:
            return self._as_meant(failure)
        return min(self._printed_why(), key=lambda record: (record.failed_at, record.rank), default=failure)

    def left_early(self) -> RankRecord | None:
        """The rank that left before the first one failed, if any did: with 0, or with nobody knows what.

        Where that one says that it lost a peer, also a rank that was gone a moment later: the sockets of a process
        close before its end is seen. It must have left by itself: nothing had asked it to.
        """
        failure = self.first_failure()
        return None if failure is None else self._left_before(failure)

    def culprit(self) -> RankRecord | None:
        """The rank to show: the first that failed, or the one that it missed."""
        failure = self.first_failure()
        if failure is None or not failure.lost_a_peer or (self.ending is not None and self.ending.hang is not None):
            return failure
        left = self._left_before(failure)
        if left is None:
            return self._as_absent(failure)
        said = f"{left.how_it_left} while rank {failure.rank} still communicated with it"
        error = {"type": "LeftEarly", "message": said, "traceback": None, "time": left.gone_at}
        return replace(left, signal=None, error=error)

    def absent(self, failure: RankRecord) -> list[RankRecord]:
        """Ranks that were somewhere else when others had waited for them in vain; [] where that is not known."""
        if not failure.waited_in_vain:
            return []
        ended = [one for one in self.ranks.values() if one.ended_by == "platform" and one.error is None and one.place]
        return [record for record in ended if not str(record.place).startswith("waiting")]

    def _as_absent(self, failure: RankRecord) -> RankRecord:
        absent = self.absent(failure)
        if len(absent) != 1:
            return failure
        error = {"type": "Hang", "message": absent[0].place, "traceback": None, "time": failure.failed_at}
        return replace(absent[0], exit_code=None, signal=None, error=error)

    def _left_before(self, failure: RankRecord) -> RankRecord | None:
        latest = failure.failed_at + (_GOING_S if failure.lost_a_peer else 0.0)
        left = [record for record in self.ranks.values() if self._left_by_itself(record) and record.gone_at <= latest]
        return min(left, key=lambda record: (record.gone_at, record.rank), default=None)

    def _left_by_itself(self, record: RankRecord) -> bool:
        """It ended well, or was about to end in no way that is known to be bad when the platform was faster."""
        if record.ended is None:
            return False
        if record.ended_by == "self":
            return not record.failed
        before = record.left is not None and (self.ending is None or record.left < self.ending.time)
        return before and record.error is None and not record.left_code

    def _as_meant(self, record: RankRecord | None) -> RankRecord | None:
        """With the code that it was about to exit with, where the platform was faster."""
        if record is None or record.ended_by != "platform" or not record.left_code:
            return record
        return replace(record, exit_code=record.left_code, signal=None)

    def _printed_why(self) -> list[RankRecord]:
        """Ranks that were about to end with an exception of their own when the platform ended them."""
        told = [record for record in self.ranks.values() if record.failed and record.printed is not None]
        found = [replace(record, error=record.printed) for record in told if not self._by_itself(record)]
        return [record for record in found if not record.lost_a_peer]

    def is_complete(self) -> bool:
        """Whether a rank has reported its last step."""
        return any(
            record.step is not None and record.total is not None and record.step >= record.total
            for record in self.ranks.values()
        )

    def _missing_rank(self, hang: Hang) -> RankRecord | None:
        """What the others waited for: where it was counts, and not how the platform ended it."""
        known = None if hang.rank is None else self.ranks.get(hang.rank)
        if known is None:
            return None
        if hang.left:
            left = {"type": "LeftEarly", "message": _LEFT_OTHERS, "traceback": None, "time": known.gone_at}
            return replace(known, signal=None, error=left)
        error = {"type": "Hang", "message": hang.place, "traceback": hang.stack or None, "time": hang.time}
        return replace(known, exit_code=None, signal=None, ended=hang.time, error=error)

    def _by_itself(self, record: RankRecord) -> bool:
        if record.ended_by != "platform":
            return True
        why = record.error is not None or bool(record.left_code)
        return why and self.ending is not None and record.failed_at < self.ending.time
