"""One node of a gang: does what the leader says, and reports. The leader's own node and every follower's run this code.

Messages (`{"do": ...}`) come in, reports (`{"say": ...}`) go out; whether the two travel over TCP or are plain calls
makes no difference. Starting, telling of exits, and ending are parts of their own. Standard library only.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gangline import __version__
from gangline.agent.accompany import Accompaniment
from gangline.agent.choose import ReasonedStarter
from gangline.agent.clearing import Clearing
from gangline.agent.exits import ExitReports
from gangline.agent.localattempt import LocalAttempt, LocalRank
from gangline.agent.logkeeper import LOOK_S, LogKeeper
from gangline.agent.loop import Loop
from gangline.agent.memory import count_oom_kills
from gangline.agent.processes import find_descendants, reap
from gangline.agent.rendezvous import reserve_port
from gangline.agent.site import Journal, Site
from gangline.agent.starter import RankExit
from gangline.agent.starting import RankStarting, terms_of
from gangline.agent.strategies import rules_of
from gangline.rundir.layout import AttemptDir

if TYPE_CHECKING:
    from gangline.agent.checks import NodeChecks

__all__ = ["Node"]


class Node:
    """Holds the attempt that runs on one node.

    Args:
        report: takes what the leader is to know.
        helpers: pids of children of the agent that are no part of an attempt.
    """

    def __init__(
        self,
        site: Site,
        *,
        loop: Loop,
        starter: ReasonedStarter,
        journal: Journal,
        report: Callable[[dict[str, Any]], None],
        helpers: set[int],
    ) -> None:
        self.site = site
        self.journal = journal
        self.helpers = helpers
        self.on_started: Callable[[int], Any] = lambda _attempt: None
        """Called with the attempt's number when its ranks were started here."""
        self.compare: Callable[[int, Callable[[dict[str, Any]], None]], None] = lambda _attempt, tell: tell({})
        """Finds out, for an attempt, what the leader is to compare of this node."""
        self.checks: NodeChecks | None = None
        """What checks this node before an attempt starts."""
        self.on_stacks: Callable[[Mapping[str, Any]], None] = lambda _order: None
        """Called when the leader asks for stacks."""
        self._starter = starter
        self._report = report
        self._introduced = False
        self._attempt: LocalAttempt | None = None
        self._starting = RankStarting(site, starter, journal)
        self._company = Accompaniment(site, loop, journal=journal, report=report, on_ready=self._start_if_ready)
        self._exits = ExitReports(site, journal, report=report, on_full=self._on_full)
        self._clearing = Clearing(
            site.launch.stop, loop, journal=journal, spared=self._own_pids, on_cleared=self._on_cleared
        )
        loop.watch(starter, self._on_starter)
        journal.on_full = self._on_full

    @property
    def live_ranks(self) -> dict[int, int]:
        """Pid of each rank that runs, by rank."""
        return self._attempt.live_ranks if self._attempt is not None else {}

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
        if self._introduced:
            return
        self._introduced = True
        site, python = self.site, sys.version.split()[0]
        who = {"pid": os.getpid(), "host": site.host, "address": site.address}
        self.journal.write("agent_started", **who, version=__version__, python=python)
        self.journal.write("joined", node=site.index)

    def warn(self, text: str, **keys: int) -> None:
        """Record something that people should know and that stops nothing."""
        self.journal.write("warning", text=text, **keys)

    def pass_on(self, number: int) -> None:
        """Give a signal to the ranks, as if it had been sent to them."""
        for pid in self.live_ranks.values():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def reap_orphans(self) -> None:
        """Wait for dead children that ranks have left to this agent, so that they do not pile up while it runs."""
        attempt = self._attempt
        known = frozenset() if attempt is None else frozenset(attempt.ranks) | attempt.supporters
        reap(find_descendants(os.getpid()), parent=os.getpid(), known=known | self._own_pids())

    def keep_logs(self) -> float:
        """Let the index of the logs catch up, and keep them within their limit; seconds until the next look."""
        if self._attempt is None or self._attempt.logs is None:
            return LOOK_S
        return self._attempt.logs.look()

    def _own_pids(self) -> frozenset[int]:
        """Children of this agent that are no part of an attempt."""
        return self._starter.own_pids() | self.helpers

    def _on_full(self, text: str) -> None:
        if self._attempt is not None:
            self._report({"say": "full", "attempt": self._attempt.folder.number, "text": text})

    # Orders of the leader, in the order in which they come

    def _prepare(self, message: Mapping[str, Any]) -> None:
        number = message["attempt"]
        self.open(number)
        self._attempt = LocalAttempt(self.site.run.attempt(number))
        refused = self._starting.find_refusal(message.get("meet"))
        if not refused:
            num_ports = rules_of(self.site.launch.strategy).num_ports(self.site.launch)
            self._attempt.ports = [reserve_port() for _ in range(num_ports)]
        ports = [port.port for port in self._attempt.ports]
        ready = {"say": "ready", "attempt": number, "refused": refused, "ports": ports}
        if refused:
            self._report({**ready, "environment": {}})
        else:
            self.compare(number, lambda seen: self._report({**ready, "environment": seen}))

    def _check(self, message: Mapping[str, Any]) -> None:
        if self._attempt is not None and self._attempt.teardown is None and self.checks is not None:
            self.checks.begin(message, terms_of(message, self.site.launch))

    def _start(self, message: Mapping[str, Any]) -> None:
        if self._attempt is not None and self._attempt.teardown is None:
            self._attempt.waiting = message
            self._start_if_ready()

    def _start_if_ready(self) -> None:
        attempt = self._attempt
        if attempt is None or attempt.waiting is None or not self._starter.ready():
            return
        if not self._company.is_there(attempt, terms_of(attempt.waiting, self.site.launch)):
            return
        message, attempt.waiting = attempt.waiting, None
        launch, number = self.site.launch, attempt.folder.number
        attempt.oom_kills = count_oom_kills()
        ranks = terms_of(message, launch).shape.ranks_of(self.site.index)
        attempt.logs = LogKeeper(attempt.folder, ranks, limit_bytes=launch.logs.max_per_rank_bytes, warn=self.warn)
        failed = self._starting.start(attempt, message)
        started = [{"rank": one.rank, "pid": one.pid, "time": one.started} for one in attempt.ranks.values()]
        self._report({"say": "started", "attempt": number, "mode": self._starter.mode, "ranks": started})
        self.on_started(number)
        for rank, error in failed:  # counts as one that ended at once
            self.warn(f"Rank {rank} could not be started: {error}.", rank=rank)
            gone = RankExit(pid=0, exit_code=126, signal=None, time=time.time())
            self._exits.tell(attempt, LocalRank(rank, 0, gone.time), gone, by="self")

    def _notice(self, message: Mapping[str, Any]) -> None:
        attempt = self._attempt
        if attempt is not None and attempt.folder.number == message["attempt"] and attempt.teardown is None:
            self._clearing.notice(attempt, message)

    def _stop(self, message: Mapping[str, Any]) -> None:
        attempt = self._attempt
        if attempt is None:
            return
        attempt.waiting = None
        if self.checks is not None:
            self.checks.cancel()
        if attempt.cleared:
            self._report_cleared(attempt, stuck=[])
        else:
            self._clearing.stop(attempt, message)

    # What happens by itself

    def _on_starter(self) -> None:
        """A rank has ended, or the starter has become ready."""
        attempt = self._attempt
        for gone in self._starter.exits():
            if attempt is not None and gone.pid in attempt.ranks:
                local = attempt.ranks[gone.pid]
                local.ended = True
                self._company.rank_ended(attempt, local.rank, gone.exit_code)
                told = attempt.teardown is not None and gone.pid in attempt.teardown.told
                self._exits.tell(attempt, local, gone, by="platform" if told else "self")
        self._start_if_ready()
        if attempt is not None:
            self._clearing.look(attempt)

    def _on_cleared(self, attempt: LocalAttempt, stuck: list[int]) -> None:
        for port in attempt.ports:
            port.release()
        if attempt.company is not None:
            attempt.company.close()
        self.keep_logs()
        self.journal.write("cleared")
        self._report_cleared(attempt, stuck=stuck)

    def _report_cleared(self, attempt: LocalAttempt, *, stuck: list[int]) -> None:
        self._report({"say": "cleared", "attempt": attempt.folder.number, "stuck": stuck})
