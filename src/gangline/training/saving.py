"""`with gangline.checkpoint(step) as path:` a save by all ranks that counts only when it is whole.

Rank 0 opens the folder, the others find it; each leaves a note when it enters and when it leaves; when all have left,
rank 0 commits. The notes are empty files in `<checkpoint path>/.saving/<folder>/`: `rank-00003.saving`, `.done` or
`.failed`.

Standard library only.
"""

from __future__ import annotations

import contextlib
import operator
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from gangline.domain.errors import GanglineError
from gangline.rundir.checkpoints import FoundCheckpoint
from gangline.rundir.commits import commit, discard, move_latest, next_attempt, open_folder, retain
from gangline.training import session
from gangline.training.context import Context
from gangline.training.gathering import Gathering, Patience, SaveKey
from gangline.training.records import phase

__all__ = ["Saver", "checkpoint"]

_saver: Saver | None = None


def checkpoint(step: int, *, rank0_only: bool = False) -> contextlib.AbstractContextManager[Path]:
    """Save a checkpoint: `with gangline.checkpoint(step) as path: torch.save(state, path / f"rank-{rank}.pt")`.

    Every rank has to enter, and each writes its own files into the folder `path`, which all share. When every rank has
    left the block, rank 0 makes it count: files on the disk, manifest, `latest`, then older ones go
    (`GANGLINE_KEEP_LAST`). If any rank fails or dies before that, nothing counts and the checkpoint before stays the
    newest.

    Args:
        step: training steps that are done, >= 0.
        rank0_only: only rank 0 saves; it does not wait for anybody, so this also works inside `if rank == 0:`. Other
            ranks that enter all the same get a folder whose contents are thrown away.
    Raises:
        TypeError, ValueError: `step` is not a whole number >= 0. What the block itself raises goes through; trouble of
            the platform does not: it is said, recorded, and training goes on.
    """
    try:
        number = operator.index(step)
    except TypeError:
        raise TypeError(f"gangline.checkpoint takes the step as a whole number, not {type(step).__name__}") from None
    if number < 0:
        raise ValueError(f"step has to be 0 or more, not {number}")
    global _saver  # noqa: PLW0603 - saves of one process are counted together
    if _saver is None:
        _saver = Saver(session.current())
    return _saver.save(number, rank0_only=rank0_only)


class Saver:
    """The saves of one process.

    Args:
        context: which rank of which gang.
        patience: how long to wait for other ranks.
    """

    def __init__(self, context: Context, *, patience: Patience | None = None) -> None:
        self.context = context
        self._gathering = Gathering(context, patience=patience or Patience())
        self._attempt: int | None = context.attempt if context.is_gangline else None
        self._saves: dict[int, int] = {}

    @contextlib.contextmanager
    def save(self, step: int, *, rank0_only: bool) -> Iterator[Path]:
        """See `checkpoint`."""
        alone = rank0_only or self.context.world_size == 1
        key = SaveKey(step=step, count=0 if alone else self._count(step))
        with phase("saving"), contextlib.ExitStack() as stack:
            if self.context.rank == 0:
                yield stack.enter_context(self._lead(key, alone=alone))
            elif alone:
                yield stack.enter_context(self._scratch())
            else:
                yield stack.enter_context(self._follow(key))

    def _count(self, step: int) -> int:
        """How many saves of this step by all ranks came before; the same number on each rank."""
        self._saves[step] = self._saves.get(step, -1) + 1
        return self._saves[step]

    @contextlib.contextmanager
    def _lead(self, key: SaveKey, *, alone: bool) -> Iterator[Path]:
        """Rank 0: open the folder, wait for the others, commit."""
        started = time.monotonic()
        folder = self._open(key)
        if folder is None:
            with self._scratch() as scratch:
                yield scratch
            return
        try:
            yield folder
        except BaseException:
            if alone:
                _quietly_discard(folder)
            else:
                self._gathering.give_up(folder)
            raise
        problem = "" if alone else self._gathering.wait_for_others(folder, key)
        if problem:
            session.writer().warn(f"checkpoint of step {key.step} was not made: {problem}")
            return
        self._commit(folder, key, started)

    @contextlib.contextmanager
    def _follow(self, key: SaveKey) -> Iterator[Path]:
        """Any other rank: find the folder, leave word."""
        folder = self._gathering.find_folder(key)
        if folder is None:
            with self._scratch() as scratch:
                yield scratch
            return
        self._gathering.note(folder, "saving")
        try:
            yield folder
        except BaseException:
            self._gathering.note(folder, "failed")
            raise
        self._gathering.note(folder, "done")

    @contextlib.contextmanager
    def _scratch(self) -> Iterator[Path]:
        """A folder whose contents are thrown away, near the checkpoints if that can be."""
        scratch = _make_scratch(self.context.checkpoint_dir)
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _open(self, key: SaveKey) -> Path | None:
        context = self.context
        try:
            if self._attempt is None:
                self._attempt = next_attempt(context.checkpoint_dir)
            return open_folder(context.checkpoint_dir, key.step, self._attempt, owner=self._gathering.owner(key))
        except OSError as error:
            where = error.filename or context.checkpoint_dir
            session.writer().warn(
                f"checkpoint of step {key.step} was not made: cannot write {where} ({error.strerror})"
            )
            return None

    def _commit(self, folder: Path, key: SaveKey, started: float) -> None:
        context, attempt = self.context, self._attempt or 0
        try:
            made = commit(folder, step=key.step, attempt=attempt, world_size=context.world_size, run_id=context.run_id)
        except (OSError, GanglineError) as error:
            session.writer().warn(f"checkpoint of step {key.step} was not made: {error}")
            _quietly_discard(folder)
            return
        if not made.complete:
            session.writer().warn(f"checkpoint of step {key.step} does not count: {made.why_not}")
            return
        session.writer().add_keys(
            "c",
            s=key.step,
            path=str(made.path),
            bytes=made.size_bytes,
            files=made.num_files,
            seconds=round(time.monotonic() - started, 3),
        )
        self._tidy(made)

    def _tidy(self, made: FoundCheckpoint) -> None:
        """After a commit: `latest`, then retention. Neither is worth an exception."""
        context = self.context
        try:
            move_latest(made.path)
        except OSError as error:
            session.writer().warn(
                f"cannot point `latest` to the newest checkpoint ({error.strerror}); it counts all the same"
            )
        try:
            removed = retain(
                context.checkpoint_dir,
                keep_last=context.keep_last,
                run_id=context.run_id,
                attempt=made.attempt,
                branch_attempt=context.branch_attempt,
                protect=[made.path, *session.resumed_from()],
            )
        except OSError as error:
            session.writer().warn(f"cannot remove older checkpoints ({error.strerror})")
            return
        for one in removed:
            session.writer().add_keys("r", s=one.step, path=str(one.path))


def _make_scratch(checkpoint_dir: Path) -> Path:
    for parent in (checkpoint_dir / ".saving", None):
        with contextlib.suppress(OSError):
            if parent is not None:
                parent.mkdir(parents=True, exist_ok=True)
            return Path(tempfile.mkdtemp(prefix="scratch-", dir=parent))
    return checkpoint_dir / "not-writable"  # the block's own attempt to write says why


def _quietly_discard(folder: Path) -> None:
    with contextlib.suppress(OSError):
        discard(folder)


def _start_over() -> None:
    global _saver  # noqa: PLW0603 - as above
    _saver = None


session.on_forget(_start_over)
