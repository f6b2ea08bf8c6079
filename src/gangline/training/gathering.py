"""How the ranks of a gang save together without talking: through notes in the checkpoint path, which they all share.

Standard library only.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gangline.rundir.checkpoints import MANIFEST
from gangline.rundir.commits import discard, is_gone, list_saves, notes_folder
from gangline.training import session
from gangline.training.context import Context
from gangline.training.writer import say

__all__ = ["Gathering", "Patience", "SaveKey", "session_of"]

_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.05
_MOST_NAMED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveKey:
    """Which save of this process: its step, and how many saves of that step came before."""

    step: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long ranks wait for one another, in seconds."""

    notice_s: float = 5.0
    """After this, rank 0 says whom it waits for."""
    entry_s: float = 120.0
    """For a rank that has not entered the block."""
    known_absent_s: float = 5.0
    """The same, once a save was given up because no other rank ever entered one."""
    save_s: float = 1800.0
    """For a rank that has entered and not left."""


class Gathering:
    """Notes of one rank, and what it reads in those of the others.

    Args:
        context: which rank of which gang.
        patience: how long to wait.
        env: where a gang without a platform finds what its ranks have in common.
    """

    def __init__(self, context: Context, *, patience: Patience, env: Mapping[str, str] = os.environ) -> None:
        self._context = context
        self._patience = patience
        self._session = session_of(context, env)
        self._others_seen = False
        self._given_up = False

    def owner(self, key: SaveKey) -> dict[str, Any]:
        """What rank 0 notes about a save that it opens, so that the other ranks find it."""
        return {
            "session": self._session,
            "count": key.count,
            "run_id": self._context.run_id,
            "numbered_by_platform": self._context.is_gangline,
            "time": time.time(),
        }

    def note(self, folder: Path, state: str) -> None:
        """Leave word that this rank is `saving`, `done` or `failed`."""
        try:
            (notes_folder(folder) / f"rank-{self._context.rank:05d}.{state}").touch()
        except OSError as error:
            session.writer().warn(f"cannot tell rank 0 that this rank is {state} ({error.strerror})")

    def find_folder(self, key: SaveKey) -> Path | None:
        """The folder that rank 0 has opened for this save; waits for it, and says so. None: rank 0 did not come."""
        found: list[Path] = []

        def look() -> bool:
            found.extend(self._matching(key)[-1:])
            return bool(found)

        if _wait(look, self._patience.notice_s):
            return found[0]
        say(
            f"rank {self._context.rank} waits for rank 0 to enter gangline.checkpoint({key.step}). Every rank has to "
            f"enter it; to save on one rank only, use rank 0 and gangline.checkpoint({key.step}, rank0_only=True)"
        )
        if _wait(look, self._patience.entry_s - self._patience.notice_s):
            return found[0]
        session.writer().warn(
            f"rank 0 did not enter gangline.checkpoint({key.step}); what this rank saves is thrown away"
        )
        return None

    def wait_for_others(self, folder: Path, key: SaveKey) -> str:
        """Rank 0: wait until every other rank has left the block.

        Returns:
            "" when all are done, else why the save cannot count, for people. A failed rank ends the wait at once.
        """
        began = time.monotonic()
        notes = _Notes(folder, self._context.world_size)
        said = False
        pause = _FIRST_PAUSE_S
        while not self._is_over(notes, waited_s := time.monotonic() - began):
            if waited_s >= self._patience.notice_s and not said:
                said = True
                say(_render_wait(notes, key, waited_s))
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        if notes.failed:
            self._close_failed(folder, notes)
            return f"{_ranks(notes.failed)} failed while saving"
        return _render_absent(notes, key, waited_s) if notes.missing else ""

    def give_up(self, folder: Path) -> None:
        """Rank 0 failed inside the block: the save never counts. Its folder goes if nobody writes there any more."""
        notes = _Notes(folder, self._context.world_size)
        notes.read()
        self._close_failed(folder, notes)

    def _matching(self, key: SaveKey) -> list[Path]:
        """Saves that rank 0 of this very gang has opened under this key and not finished, oldest first."""
        found = []
        for folder, owner in list_saves(self._context.checkpoint_dir):
            same = (owner.get("session"), owner.get("step"), owner.get("count")) == (self._session, key.step, key.count)
            if same and folder.is_dir() and not (folder / MANIFEST).exists() and not is_gone(owner):
                found.append((owner.get("time", 0.0), folder))
        return [folder for _, folder in sorted(found)]

    def _is_over(self, notes: _Notes, waited_s: float) -> bool:
        """Whether rank 0 need not wait any more: all have left, one has failed, or patience has ended."""
        notes.read()
        self._others_seen = self._others_seen or notes.anybody
        if notes.failed or not notes.missing:
            return True
        if waited_s < self._limit_s(notes):
            return False
        self._given_up = True
        return True

    def _limit_s(self, notes: _Notes) -> float:
        if not notes.absent:
            return self._patience.save_s
        hopeless = self._given_up and not self._others_seen
        return self._patience.known_absent_s if hopeless else self._patience.entry_s

    def _close_failed(self, folder: Path, notes: _Notes) -> None:
        if not notes.missing:
            try:
                discard(folder)
            except OSError as error:
                session.writer().warn(f"cannot remove the failed save {folder.name} ({error.strerror})")


class _Notes:
    """What the ranks other than 0 have noted about one save."""

    def __init__(self, folder: Path, world_size: int) -> None:
        self._path = notes_folder(folder)
        self._others = range(1, world_size)
        self.failed: list[int] = []
        self.missing: list[int] = list(self._others)
        """Neither done nor failed."""
        self.absent: list[int] = list(self._others)
        """Not even entered."""

    @property
    def anybody(self) -> bool:
        return len(self.absent) < len(self._others)

    def read(self) -> None:
        try:
            names = {path.name for path in self._path.iterdir()}
        except OSError:  # a shared file system that hiccups; the next look tells
            return
        self.failed = [rank for rank in self._others if f"rank-{rank:05d}.failed" in names]
        left = {rank for rank in self._others if f"rank-{rank:05d}.done" in names} | set(self.failed)
        self.missing = [rank for rank in self._others if rank not in left]
        self.absent = [rank for rank in self.missing if f"rank-{rank:05d}.saving" not in names]


def session_of(context: Context, env: Mapping[str, str]) -> str:
    """What the ranks of one start of one gang have in common, and no other start has.

    Under Gangline run and attempt say it. Under torchrun it is made of the rendezvous that its ranks share and, for
    ranks on one node, of their common parent; what an older start left behind is told apart by its dead owner.
    """
    if context.is_gangline:
        return f"{context.run_id}.{context.attempt}"
    names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")
    parts = [env.get(name, "") for name in names]
    if context.num_nodes == 1:
        parts.append(str(os.getppid()))
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _wait(condition: Callable[[], bool], limit_s: float) -> bool:
    """Wait until a condition holds; False when the time is over."""
    until = time.monotonic() + limit_s
    pause = _FIRST_PAUSE_S
    while not condition():
        if time.monotonic() >= until:
            return False
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)
    return True


def _ranks(ranks: list[int]) -> str:
    named = ", ".join(str(rank) for rank in ranks[:_MOST_NAMED])
    more = f" and {len(ranks) - _MOST_NAMED} more" if len(ranks) > _MOST_NAMED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {named}{more}"


def _render_wait(notes: _Notes, key: SaveKey, waited_s: float) -> str:
    if notes.absent:
        who = f"{_ranks(notes.absent)} to enter gangline.checkpoint({key.step})"
        return f"rank 0 has waited {waited_s:.0f} s for {who}. {_render_fix(key)}"
    return f"rank 0 has waited {waited_s:.0f} s for {_ranks(notes.missing)} to finish saving step {key.step}"


def _render_absent(notes: _Notes, key: SaveKey, waited_s: float) -> str:
    if notes.absent:
        who = f"{_ranks(notes.absent)} did not enter gangline.checkpoint({key.step})"
        return f"{who} within {waited_s:.0f} s. {_render_fix(key)}"
    return f"{_ranks(notes.missing)} did not finish saving within {waited_s:.0f} s"


def _render_fix(key: SaveKey) -> str:
    return f"Every rank has to enter it; inside `if rank == 0:` use gangline.checkpoint({key.step}, rank0_only=True)"
