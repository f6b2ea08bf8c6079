"""The ranks of one node: started, seen to end, ended. The leader's own node and every follower's run this same code.

It is told what to do by messages (`{"do": ...}`) and answers by reports (`{"say": ...}`); whether the two travel over
TCP or are plain calls makes no difference to it. Standard library only.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gangline import __version__
from gangline.agent.addresses import probe_address
from gangline.agent.checks import NodeChecks
from gangline.agent.choose import ReasonedStarter
from gangline.agent.commandline import write_notebook_script
from gangline.agent.environ import AttemptTerms
from gangline.agent.lastwords import read_error, read_last_step, read_tail
from gangline.agent.launchspec import LaunchSpec, Shape
from gangline.agent.logkeeper import LOOK_S, LogKeeper
from gangline.agent.loop import Loop, Timer
from gangline.agent.memory import Memory, read_memory
from gangline.agent.processes import find_descendants, is_python, reap, send
from gangline.agent.rendezvous import ReservedPort, reserve_port
from gangline.agent.sampler import count_oom_kills
from gangline.agent.site import Journal, Site
from gangline.agent.starter import RankExit, RankStart
from gangline.agent.storage import find_missing_interpreter, probe_checkpoint_folder
from gangline.agent.teardown import NOTICES, SUCCESS, Teardown, TreeView, notice_targets
from gangline.domain.phase import Reason
from gangline.domain.spec import EntryKind, NoticeSignal, Strategy
from gangline.rundir.files import write_json
from gangline.rundir.layout import AttemptDir
from gangline.rundir.space import probe_folder

__all__ = ["LocalRank", "Node"]

_TICK_S = 0.005
_SLOWEST_TICK_S = 0.1
_STUCK_AFTER_S = 60.0
_READ_BYTES = 32_768
"""Of a failed rank's log, to find an exception in."""
_TAIL_CHARS = 4096
"""Of it, what is kept with the result."""


@dataclass(slots=True)
class LocalRank:
    """One rank of the attempt on this node."""

    rank: int
    pid: int
    started: float
    ended: bool = False


@dataclass(slots=True)
class LocalAttempt:
    """What this node holds of the current attempt."""

    folder: AttemptDir
    ranks: dict[int, LocalRank] = field(default_factory=dict)
    """By pid."""
    ports: list[ReservedPort] = field(default_factory=list)
    waiting: Mapping[str, Any] | None = None
    """The order to start, while the starter is not ready."""
    teardown: Teardown | None = None
    tick: Timer | None = None
    stopping_since: float = 0.0
    killed: bool = False
    cleared: bool = False
    oom_kills: int | None = None
    logs: LogKeeper | None = None


class Node:
    """Starts, watches and ends the ranks of one node."""

    def __init__(
        self,
        site: Site,
        *,
        loop: Loop,
        starter: ReasonedStarter,
        journal: Journal,
        report: Callable[[dict[str, Any]], None],
    ) -> None:
        self.site = site
        self.journal = journal
        self.helpers: set[int] = set()
        """Children of the agent that are no part of an attempt."""
        self.on_started: Callable[[int], Any] = lambda _attempt: None
        """Called with the attempt's number when its ranks were started here."""
        self.compare: Callable[[int, Callable[[dict[str, Any]], None]], None] = lambda _attempt, tell: tell({})
        """Finds out, for an attempt, what the leader is to compare of this node."""
        self.checks: NodeChecks | None = None
        """What checks this node before an attempt starts."""
        self.on_stacks: Callable[[Mapping[str, Any]], None] = lambda _order: None
        """Called when the leader asks for stacks."""
        self._loop = loop
        self._starter = starter
        self._report = report
        self._introduced = False
        self._fallback_told: str | None = None
        self._entry = site.launch.entry
        self._attempt: LocalAttempt | None = None
        loop.watch(starter, self._on_starter)
        journal.on_full = self._on_full

    @property
    def live_ranks(self) -> dict[int, int]:
        """Pid of each rank that runs, by rank."""
        ranks = self._attempt.ranks.values() if self._attempt is not None else ()
        return {local.rank: local.pid for local in ranks if not local.ended}

    @property
    def folder(self) -> AttemptDir | None:
        """Folder of the attempt that runs; None between attempts."""
        attempt = self._attempt
        return attempt.folder if attempt is not None and attempt.ranks and not attempt.cleared else None

    @property
    def is_clear(self) -> bool:
        """No process of any attempt is left here."""
        return self._attempt is None or self._attempt.cleared

    def handle(self, message: Mapping[str, Any]) -> None:
        """Do what the leader says: `prepare`, `check`, `start`, `notice`, `stop` or `stacks`."""
        orders = {
            "prepare": self._prepare,
            "check": self._check,
            "start": self._start,
            "notice": self._notice,
            "stop": self._stop,
            "stacks": self.on_stacks,
        }
        orders[message["do"]](message)

    def open(self, attempt: int) -> None:
        """Let the journal go on in the folder of this attempt."""
        self.journal.open(self.site.run.attempt(attempt))
        if not self._introduced:
            self._introduced = True
            site, python = self.site, sys.version.split()[0]
            self.journal.write(
                "agent_started",
                pid=os.getpid(),
                host=site.host,
                address=site.address,
                version=__version__,
                python=python,
            )
            self.journal.write("joined", node=site.index)

    def warn(self, text: str, **keys: int) -> None:
        """Record something that people should know and that stops nothing."""
        self.journal.write("warning", text=text, **keys)

    def _on_full(self, text: str) -> None:
        if self._attempt is not None:
            number = self._attempt.folder.number
            self._report({"say": "full", "attempt": number, "text": text})

    def reap_orphans(self) -> None:
        """Wait for dead children that ranks have left to this agent, so that they do not pile up while it runs."""
        known = frozenset(self._attempt.ranks if self._attempt is not None else ())
        children = find_descendants(os.getpid())
        reap(children, parent=os.getpid(), known=known | self._starter.own_pids() | self.helpers)

    def keep_logs(self) -> float:
        """Let the index of the logs catch up, and keep them within their limit; seconds until the next look."""
        if self._attempt is None or self._attempt.logs is None:
            return LOOK_S
        return self._attempt.logs.look()

    # Preparing

    def _prepare(self, message: Mapping[str, Any]) -> None:
        folder = self.site.run.attempt(message["attempt"])
        self.open(message["attempt"])
        self._attempt = LocalAttempt(folder)
        refused = self._refusal() or _unmet(message.get("meet"))
        if not refused and self.site.launch.strategy is Strategy.TENSORFLOW:
            self._attempt.ports = [reserve_port() for _ in range(self.site.launch.procs_per_node)]
        ports = [port.port for port in self._attempt.ports]
        ready = {"say": "ready", "attempt": message["attempt"], "refused": refused, "ports": ports}
        if refused:
            self._report({**ready, "environment": {}})
        else:
            self.compare(message["attempt"], lambda seen: self._report({**ready, "environment": seen}))

    def _check(self, message: Mapping[str, Any]) -> None:
        if self._attempt is None or self._attempt.teardown is not None or self.checks is None:
            return
        terms = AttemptTerms(
            attempt=message["attempt"],
            shape=Shape(tuple(message["nodes"]), self.site.launch.procs_per_node),
            master_addr=message["master_addr"],
            master_port=message["master_port"],
        )
        self.checks.begin(message, terms)

    def _refusal(self) -> dict[str, str] | None:
        """Why this node cannot start the attempt, found before any rank runs."""
        launch, workdir = self.site.launch, self.site.workdir
        fault = probe_checkpoint_folder(launch.checkpoint.path or "")
        if fault:
            return {"reason": Reason.STORAGE.value, "text": fault}
        if not workdir.is_dir():
            return {"reason": Reason.STORAGE.value, "text": f"working folder {workdir} is not there"}
        missing = "" if launch.entry_kind is EntryKind.COMMAND else find_missing_interpreter(launch.python)
        if missing:
            return {"reason": Reason.ENVIRONMENT_MISMATCH.value, "text": missing}
        if launch.entry_kind is EntryKind.NOTEBOOK:
            try:
                self._entry = write_notebook_script(workdir, launch.entry)
            except (OSError, ValueError) as error:
                return {"reason": Reason.USER_ERROR.value, "text": f"notebook {launch.entry} cannot be read: {error}"}
        return None

    # Starting

    def _start(self, message: Mapping[str, Any]) -> None:
        if self._attempt is None or self._attempt.teardown is not None:
            return
        self._attempt.waiting = message
        self._start_if_ready()

    def _start_if_ready(self) -> None:
        attempt = self._attempt
        if attempt is None or attempt.waiting is None or not self._starter.ready():
            return
        message, attempt.waiting = attempt.waiting, None
        launch, number = self.site.launch, attempt.folder.number
        keys = ("master_addr", "master_port", "resume", "resume_step", "fresh")
        told = {key: message[key] for key in keys}
        self._note_fallback()
        self.journal.write(
            "attempt_started",
            attempt=number,
            launch=launch.launch,
            nodes=message["nodes"],
            start_mode=self._starter.mode,
            **told,
        )
        attempt.oom_kills = count_oom_kills()
        shape = Shape(tuple(message["nodes"]), launch.procs_per_node)
        ranks, limit_bytes = shape.ranks_of(self.site.index), launch.logs.max_per_rank_bytes
        attempt.logs = LogKeeper(attempt.folder, ranks, limit_bytes=limit_bytes, warn=self.warn)
        failed = self._start_ranks(attempt, shape, message)
        self._note_fallback()
        started = [{"rank": one.rank, "pid": one.pid, "time": one.started} for one in attempt.ranks.values()]
        self._report({"say": "started", "attempt": number, "mode": self._starter.mode, "ranks": started})
        self.on_started(number)
        for rank, error in failed:
            self._report_unstarted(attempt, rank, error)

    def _note_fallback(self) -> None:
        """Ranks start in another way than the spec asks for: people should know why."""
        reason = self._starter.fallback_reason
        if reason is not None and reason != self._fallback_told:
            self._fallback_told = reason
            self.warn(reason)

    def _start_ranks(
        self, attempt: LocalAttempt, shape: Shape, message: Mapping[str, Any]
    ) -> list[tuple[int, OSError]]:
        terms = AttemptTerms(
            attempt=attempt.folder.number,
            shape=shape,
            master_addr=message["master_addr"],
            master_port=message["master_port"],
            resume=message["resume"] or "",
            cluster=message["cluster"],
        )
        failed = []
        for rank in shape.ranks_of(self.site.index):
            order = self._rank_start(rank, terms)
            try:
                pid = self._starter.start(order)
            except OSError as error:
                failed.append((rank, error))
                continue
            attempt.ranks[pid] = LocalRank(rank, pid, time.time())
            self.journal.write("rank_started", rank=rank, local_rank=order.local_rank, pid=pid)
        return failed

    def _rank_start(self, rank: int, terms: AttemptTerms) -> RankStart:
        launch, folder = self.site.launch, self.site.run.attempt(terms.attempt)
        return RankStart(
            rank=rank,
            local_rank=rank % launch.procs_per_node,
            env=self.site.environment_of(rank, terms),
            cwd=str(self.site.workdir),
            log_path=str(folder.log(rank)),
            error_path=str(folder.error(rank)),
            stacks_path=str(folder.stacks(rank)),
            pdb_path=_pdb_path(launch, folder, rank),
            entry_kind="script" if launch.entry_kind is EntryKind.NOTEBOOK else launch.entry_kind.value,
            entry=self._entry,
            args=launch.args,
            python=launch.python,
        )

    def _report_unstarted(self, attempt: LocalAttempt, rank: int, error: OSError) -> None:
        """A rank that the starter could not start counts as one that ended at once."""
        self.warn(f"Rank {rank} could not be started: {error}.", rank=rank)
        gone = RankExit(pid=0, exit_code=126, signal=None, time=time.time())
        self._report_exit(attempt, LocalRank(rank, 0, gone.time), gone, by="self")

    # Watching

    def _on_starter(self) -> None:
        attempt = self._attempt
        for gone in self._starter.exits():
            if attempt is not None and gone.pid in attempt.ranks:
                self._take_exit(attempt, attempt.ranks[gone.pid], gone)
        self._start_if_ready()
        if attempt is not None and attempt.teardown is not None:
            self._step()

    def _take_exit(self, attempt: LocalAttempt, local: LocalRank, gone: RankExit) -> None:
        local.ended = True
        told = attempt.teardown is not None and gone.pid in attempt.teardown.told
        self._report_exit(attempt, local, gone, by="platform" if told else "self")

    def _report_exit(self, attempt: LocalAttempt, local: LocalRank, gone: RankExit, *, by: str) -> None:
        failed, folder = gone.exit_code != 0, attempt.folder
        log = read_tail(folder.log(local.rank), _READ_BYTES) if failed else ""
        error = None
        if failed:
            error = read_error(
                folder, local.rank, log=log, signal=gone.signal, warn=lambda text: self.warn(text, rank=local.rank)
            )
        last = read_last_step(self.site.run.metrics(local.rank), folder.number)
        facts = {
            "rank": local.rank,
            "pid": local.pid or None,
            "exit_code": gone.exit_code,
            "signal": gone.signal,
            "ended_by": by,
            "peak_rss_bytes": gone.peak_rss_bytes,
            "error": error,
            "step": last.step,
            "phase": last.phase,
        }
        self.journal.write("rank_exited", **facts)
        if gone.exit_code and error is None:
            self._ask_for_room()
        extra = {
            "time": gone.time,
            "started": local.started,
            "log_tail": log[-_TAIL_CHARS:],
            "total": last.total,
            "oom_kills": self._new_oom_kills(attempt),
            "memory": _describe_memory(read_memory()) if failed else None,
        }
        self._report({"say": "exited", "attempt": attempt.folder.number, **facts, **extra})

    def _ask_for_room(self) -> None:
        """A rank that failed without a word may have had no room for one, although the journal still had."""
        fault = probe_folder(self.site.run.path)
        if fault:
            self._on_full(f"{fault}.")

    def _new_oom_kills(self, attempt: LocalAttempt) -> int:
        now = count_oom_kills()
        return 0 if now is None or attempt.oom_kills is None else now - attempt.oom_kills

    # Ending

    def _notice(self, message: Mapping[str, Any]) -> None:
        """Ranks that ask `gangline.should_stop()` are told, and others by a signal if the spec names one."""
        attempt = self._attempt
        if attempt is None or attempt.folder.number != message["attempt"] or attempt.teardown is not None:
            return
        self.journal.write("notice", cause=message["cause"], notice_s=message["notice_s"])
        self._write_notice(attempt, message["cause"], message["deadline"])
        wanted = self.site.launch.stop.notice_signal
        if wanted is not NoticeSignal.NONE:
            send(notice_targets(self._view(attempt)), signal.Signals[f"SIG{wanted}"])

    def _stop(self, message: Mapping[str, Any]) -> None:
        attempt = self._attempt
        if attempt is None:
            return
        attempt.waiting = None
        if self.checks is not None:
            self.checks.cancel()
        if attempt.cleared:
            self._report_cleared(attempt, stuck=[])
            return
        cause, grace_s = message["cause"], float(message["grace_s"])
        deadline = time.monotonic() + grace_s
        if cause in NOTICES:
            self._write_notice(attempt, cause, message["deadline"])
        if cause != SUCCESS:
            self.journal.write("stopping", cause=cause, grace_s=grace_s)
        if attempt.teardown is None:
            leftover_s = self.site.launch.stop.failure_grace_s
            attempt.stopping_since = time.monotonic()
            attempt.teardown = Teardown(cause=cause, deadline=deadline, leftover_grace_s=leftover_s)
        else:
            attempt.teardown.escalate(cause, deadline)
        self._step()

    def _write_notice(self, attempt: LocalAttempt, cause: str, deadline: float) -> None:
        """Before the first signal: a training loop that is woken by the signal must find it."""
        try:
            write_json(attempt.folder.notice, {"kind": cause, "time": time.time(), "deadline": deadline})
        except OSError as error:
            self.warn(f"The notice could not be written: {error}.")

    def _step(self) -> None:
        """One look at what is left of the attempt, and the signals that it calls for."""
        attempt = self._attempt
        if attempt is None or attempt.teardown is None or attempt.cleared:
            return
        view = self._view(attempt)
        now = time.monotonic()
        overdue_s = now - attempt.teardown.deadline
        if not view.alive and all(local.ended for local in attempt.ranks.values()):
            self._clear(attempt, stuck=[])
        elif overdue_s > _STUCK_AFTER_S:
            self._clear(attempt, stuck=[process.pid for process in view.alive])
        else:
            self._signal(attempt, attempt.teardown, view, now)
            self._tick(attempt, now)

    def _view(self, attempt: LocalAttempt) -> TreeView:
        me = os.getpid()
        spared = self._starter.own_pids() | self.helpers
        ranks = {pid for pid, local in attempt.ranks.items() if not local.ended}
        found = find_descendants(me, spared=spared)
        reap(found, parent=me, known=frozenset(attempt.ranks) | spared)
        alive = [process for process in found if not process.dead]
        notice = attempt.teardown is None or attempt.teardown.cause in NOTICES
        return TreeView(
            alive=alive,
            ranks=ranks,
            cooperative={pid for pid in ranks if attempt.folder.cooperative(attempt.ranks[pid].rank).exists()},
            python={process.pid for process in alive if is_python(process.pid)} if notice else set(),
        )

    def _signal(self, attempt: LocalAttempt, teardown: Teardown, view: TreeView, now: float) -> None:
        orders = teardown.decide(view, now)
        if teardown.cause == SUCCESS and signal.SIGTERM in orders.values():
            self.warn(f"All ranks exited with 0 and left processes behind, which are ended: {sorted(orders)}.")
        for number in set(orders.values()):
            taken = send([pid for pid, ordered in orders.items() if ordered == number], number)
            if number == signal.SIGKILL and taken and now >= teardown.deadline and not attempt.killed:
                attempt.killed = True
                self.journal.write("killed", pids=taken)

    def _tick(self, attempt: LocalAttempt, now: float) -> None:
        """Look again, soon at first: exits of ranks are told, those of their children have to be looked for."""
        if attempt.tick is not None:
            attempt.tick.cancel()
        pause_s = min(_SLOWEST_TICK_S, max(_TICK_S, (now - attempt.stopping_since) / 10))
        attempt.tick = self._loop.after(pause_s, self._step)

    def _clear(self, attempt: LocalAttempt, *, stuck: list[int]) -> None:
        attempt.cleared = True
        if attempt.tick is not None:
            attempt.tick.cancel()
        for port in attempt.ports:
            port.release()
        self.keep_logs()
        if stuck:
            self.warn(f"Processes {stuck} did not end even by SIGKILL; this node should be looked at.")
        self.journal.write("cleared")
        self._report_cleared(attempt, stuck=stuck)

    def _report_cleared(self, attempt: LocalAttempt, *, stuck: list[int]) -> None:
        self._report({"say": "cleared", "attempt": attempt.folder.number, "stuck": stuck})


def _pdb_path(launch: LaunchSpec, folder: AttemptDir, rank: int) -> str:
    if launch.pdb_rank is None:
        return ""
    return str(folder.pdb(rank)) if rank == launch.pdb_rank else "-"


def _describe_memory(memory: Memory | None) -> dict[str, int] | None:
    return None if memory is None else {"limit_bytes": memory.limit_bytes, "used_bytes": memory.used_bytes}


def _unmet(meet: Sequence[Any] | None) -> dict[str, str] | None:
    """Why ranks of this node would not meet the others, where the address of the meeting is one that somebody set."""
    fault = probe_address(meet[0], meet[1]) if meet else ""
    if not meet or not fault:
        return None
    text = f"the address {meet[0]} that node 0 was given (GANGLINE_ADDRESS) is not reached from here: {fault}"
    return {"reason": Reason.RENDEZVOUS_FAILED.value, "text": text}
