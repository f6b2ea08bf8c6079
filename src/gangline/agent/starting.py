"""The ranks of one node, started: whether that is possible here, and what each of them gets. Standard library only."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from gangline.agent.addresses import probe_address
from gangline.agent.batchscript import find_script_fault, link_logs, read_job_shape, render_batch_argv, script_folder
from gangline.agent.choose import ReasonedStarter
from gangline.agent.commandline import write_notebook_script
from gangline.agent.environ import AttemptTerms
from gangline.agent.launchspec import LaunchSpec, Shape
from gangline.agent.localattempt import LocalAttempt, LocalRank
from gangline.agent.site import Journal, Site
from gangline.agent.starter import RankStart
from gangline.agent.storage import find_missing_interpreter, probe_checkpoint_folder
from gangline.agent.strategies import rules_of
from gangline.domain.phase import Reason
from gangline.domain.spec import EntryKind
from gangline.rundir.layout import AttemptDir

__all__ = ["RankStarting", "terms_of"]


class RankStarting:
    """Starts the ranks of each attempt."""

    def __init__(self, site: Site, starter: ReasonedStarter, journal: Journal) -> None:
        self._site = site
        self._starter = starter
        self._journal = journal
        self._fallback_told: str | None = None
        self._entry = site.launch.entry
        self._rules = rules_of(site.launch.strategy)

    def find_refusal(self, meet: Sequence[Any] | None) -> dict[str, str] | None:
        """Why this node cannot start the attempt, found before any rank runs: `reason` and `text`.

        Args:
            meet: address and port that are to be reached from here; None: they are known to be.
        """
        launch, workdir = self._site.launch, self._site.workdir
        fault = probe_checkpoint_folder(launch.checkpoint.path or "")
        if fault:
            return {"reason": Reason.STORAGE.value, "text": fault}
        if not workdir.is_dir():
            return {"reason": Reason.STORAGE.value, "text": f"working folder {workdir} is not there"}
        missing = "" if launch.entry_kind is EntryKind.COMMAND else find_missing_interpreter(launch.python)
        missing = missing or self._rules.find_refusal(launch)
        if missing:
            return {"reason": Reason.ENVIRONMENT_MISMATCH.value, "text": missing}
        fault = "" if launch.batch is None else find_script_fault(launch.batch, workdir)
        if fault:
            return {"reason": Reason.USER_ERROR.value, "text": fault}
        if launch.entry_kind is EntryKind.NOTEBOOK:
            try:
                self._entry = write_notebook_script(workdir, launch.entry)
            except (OSError, ValueError) as error:
                return {"reason": Reason.USER_ERROR.value, "text": f"notebook {launch.entry} cannot be read: {error}"}
        return _unmet(meet)

    def start(self, attempt: LocalAttempt, order: Mapping[str, Any]) -> list[tuple[int, OSError]]:
        """Start all ranks of this node; those that could not be started, and why.

        Args:
            order: the leader's, as `gangfile.render_start` makes it.
        """
        terms = terms_of(order, self._site.launch)
        self.note_fallback()
        self._note_start(order)
        failed = []
        for rank in terms.shape.ranks_of(self._site.index):
            ordered = self._rules.program(self._render_rank(rank, terms), self._site, terms)
            if attempt.company is not None:
                ordered = attempt.company.adapt(ordered)
            try:
                pid = self._starter.start(ordered)
            except OSError as error:
                failed.append((rank, error))
                continue
            attempt.ranks[pid] = LocalRank(rank, pid, time.time(), supports=self._rules.supports(rank))
            self._journal.write("rank_started", rank=rank, local_rank=ordered.local_rank, pid=pid)
        self.note_fallback()
        return failed

    def note_fallback(self) -> None:
        """Where ranks start in another way than the spec asks for, people should know why: say it once."""
        reason = self._starter.fallback_reason
        if reason is not None and reason != self._fallback_told:
            self._fallback_told = reason
            self._journal.write("warning", text=reason)

    def _note_start(self, order: Mapping[str, Any]) -> None:
        keys = ("attempt", "nodes", "master_addr", "master_port", "resume", "resume_step", "fresh")
        told = {key: order[key] for key in keys}
        launch = self._site.launch
        job = read_job_shape(os.environ) if launch.batch is not None else {}
        self._journal.write("attempt_started", launch=launch.launch, start_mode=self._starter.mode, **told, **job)

    def _render_rank(self, rank: int, terms: AttemptTerms) -> RankStart:
        launch, folder = self._site.launch, self._site.run.attempt(terms.attempt)
        entry, args, cwd, env = self._entry, launch.args, self._site.workdir, self._site.environment_of(rank, terms)
        if launch.batch is not None:
            entry, *words = render_batch_argv(launch.batch, args, cwd)
            args, cwd = tuple(words), script_folder(launch.batch, cwd)
            link_logs(launch, env, self._site.workdir, folder.log(rank))
        return RankStart(
            rank=rank,
            local_rank=rank % launch.procs_per_node,
            env=env,
            cwd=str(cwd),
            log_path=str(folder.log(rank)),
            error_path=str(folder.error(rank)),
            stacks_path=str(folder.stacks(rank)),
            pdb_path=_pdb_path(launch, folder, rank),
            entry_kind="script" if launch.entry_kind is EntryKind.NOTEBOOK else launch.entry_kind.value,
            entry=entry,
            args=args,
            python=launch.python,
        )


def terms_of(order: Mapping[str, Any], launch: LaunchSpec) -> AttemptTerms:
    """What an order to start, or to check, says of the whole gang."""
    return AttemptTerms(
        attempt=order["attempt"],
        shape=Shape(tuple(order["nodes"]), launch.procs_per_node),
        master_addr=order["master_addr"],
        master_port=order["master_port"],
        resume=order.get("resume") or "",
        cluster=order.get("cluster") or (),
        addresses=order.get("addresses") or (),
    )


def _pdb_path(launch: LaunchSpec, folder: AttemptDir, rank: int) -> str:
    if launch.pdb_rank is None:
        return ""
    return str(folder.pdb(rank)) if rank == launch.pdb_rank else "-"


def _unmet(meet: Sequence[Any] | None) -> dict[str, str] | None:
    """Why ranks of this node would not meet the others, where the address of the meeting is one that somebody set."""
    fault = probe_address(meet[0], meet[1]) if meet else ""
    if not meet or not fault:
        return None
    text = f"the address {meet[0]} that node 0 was given (GANGLINE_ADDRESS) is not reached from here: {fault}"
    return {"reason": Reason.RENDEZVOUS_FAILED.value, "text": text}
