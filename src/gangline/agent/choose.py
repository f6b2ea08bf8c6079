"""How the ranks of a run start: warm where it helps and is safe, else by exec, and why. Standard library only."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from gangline.agent.inject import render_injection, write_injected
from gangline.agent.preload import Scan, decide_preload, path_start, scan_entry
from gangline.agent.starter import RankExit, RankStart, Starter
from gangline.agent.warm import HelperPlan, WarmStarter, decide_helper_environment, render_interpreter_argv

__all__ = ["InjectingStarter", "ReasonedStarter", "StarterPlan", "decide_modules", "open_starter"]


class ReasonedStarter(Starter, Protocol):
    """A starter that can say why it does not start as it was asked to."""

    fallback_reason: str | None
    """One sentence for the journal, or None. It may appear later, when a warm helper dies; `mode` changes with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StarterPlan:
    """What is known of all ranks of a node before the first one starts."""

    start: str
    """`auto`, `warm` or `exec`."""
    entry_kind: str
    entry: str
    args: tuple[str, ...]
    python: str
    cwd: str
    """Where ranks start; the code has to be there already."""
    preload: tuple[str, ...]
    env: Mapping[str, str]
    """Environment of the node's first rank, as complete as it is known."""
    folder: Path
    """The launch's own folder; what is injected into ranks is written below it."""


class InjectingStarter:
    """An exec starter whose Python ranks describe the exception that ends them."""

    def __init__(self, starter: Starter, *, folder: Path, fallback_reason: str | None = None) -> None:
        self.fallback_reason = fallback_reason
        self._starter = starter
        self._folder = folder

    @property
    def mode(self) -> str:
        return self._starter.mode

    def fileno(self) -> int:
        return self._starter.fileno()

    def ready(self) -> bool:
        return self._starter.ready()

    def own_pids(self) -> frozenset[int]:
        return self._starter.own_pids()

    def start(self, rank: RankStart) -> int:
        env = render_injection(rank, folder=self._folder)
        return self._starter.start(replace(rank, env=env))

    def exits(self) -> list[RankExit]:
        return self._starter.exits()

    def close(self) -> None:
        self._starter.close()


def open_starter(plan: StarterPlan, *, exec_starter: Callable[[], Starter]) -> ReasonedStarter:
    """Choose and open the starter for this node; a warm one begins to import at once.

    Args:
        exec_starter: makes the plain starter; called at most once.
    Raises:
        OSError: the launch's folder cannot be written.
    """
    folder = plan.folder / "injected"
    write_injected(folder)
    modules, reason = decide_modules(plan)
    if modules is None:
        return InjectingStarter(exec_starter(), folder=folder, fallback_reason=reason)
    helper = HelperPlan(
        argv=render_interpreter_argv(plan.python, plan.entry_kind, plan.entry, plan.args),
        cwd=plan.cwd,
        env=decide_helper_environment(plan.env),
        path_start=path_start(plan.entry_kind, plan.entry, plan.cwd),
        modules=modules,
        folder=folder,
    )
    return WarmStarter(helper, exec_starter=lambda: InjectingStarter(exec_starter(), folder=folder))


def decide_modules(plan: StarterPlan, *, platform: str = sys.platform) -> tuple[tuple[str, ...] | None, str | None]:
    """(modules for the helper, marked; None for exec start), and why warm start is not done although it would help.

    Reads the code; see `preload.py`.
    """
    if plan.start == "exec":
        return None, None
    if plan.entry_kind not in {"script", "module"}:
        return None, "Ranks start by exec: a command cannot be started warm." if plan.start == "warm" else None
    if platform != "linux":
        return None, "Ranks start by exec: warm start needs Linux." if plan.start == "warm" else None
    scan = scan_entry(plan.entry_kind, plan.entry, plan.cwd, search=plan.env.get("PYTHONPATH", "").split(os.pathsep))
    needed, wanted = decide_preload(scan, plan.preload)
    if plan.start == "auto" and (early := _early(scan, plan.env)):
        names = ", ".join(sorted(early))
        return None, f"Ranks start by exec: the code sets {names} before it imports torch, which reads it at import."
    if plan.start == "auto" and not needed:
        return None, None
    return _marked(needed, wanted, plan.preload), None


def _early(scan: Scan, env: Mapping[str, str]) -> set[str]:
    return scan.early_variables | (scan.early_defaults - env.keys()) if scan.uses_torch else set()


def _marked(needed: Sequence[str], wanted: Sequence[str], listed: Sequence[str]) -> tuple[str, ...]:
    return (
        *(name for name in needed if name not in listed),
        *(f"?{name}" for name in wanted),
        *(f"+{name}" for name in listed),
    )
