"""`gangline.latest_checkpoint()`: where to start from.

Standard library only.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from gangline.rundir.checkpoints import newest_complete, parse_folder_name, render_choice
from gangline.training import session
from gangline.training.context import Context
from gangline.training.writer import say

__all__ = ["Checkpoint", "latest_checkpoint", "newest_checkpoint"]


@dataclass(frozen=True, slots=True)
class Checkpoint(os.PathLike[str]):
    """A checkpoint to load: `torch.load(checkpoint.path / "model.pt")`. Can be used as a path itself."""

    step: int
    path: Path

    def __fspath__(self) -> str:
        return os.fspath(self.path)


def latest_checkpoint() -> Checkpoint | None:
    """The checkpoint that this attempt starts from, or None: start fresh.

    Under Gangline it was chosen once for all ranks when the attempt began, so the answer stays the same during the
    attempt. Alone, it is the newest complete checkpoint in `GANGLINE_CHECKPOINT_DIR`, by default `./checkpoints`; what
    is passed over is said.
    """
    context = session.current()
    if context.is_gangline:
        return _resolve(context.resume) if context.resume is not None else None
    return _search(context)


def _resolve(path: Path) -> Checkpoint:
    named = parse_folder_name(path.name)
    if named is not None:
        return Checkpoint(named[0], path)
    target = Path(os.path.realpath(path))  # `latest`, or a folder that somebody named
    named = parse_folder_name(target.name)
    return Checkpoint(named[0] if named is not None else 0, path)


def _search(context: Context) -> Checkpoint | None:
    try:
        found, skipped = newest_complete(context.checkpoint_dir)
    except OSError as error:
        session.writer().warn(
            f"cannot look for checkpoints in {context.checkpoint_dir} ({error.strerror}); starting fresh"
        )
        return None
    if context.rank == 0:
        for line in render_choice(context.checkpoint_dir, found, skipped):
            say(line)
    if found is None:
        return None
    session.resumed_from(found.path)
    return Checkpoint(found.step, found.path)


def newest_checkpoint() -> Checkpoint | None:
    """The newest complete checkpoint there is now, also one that this attempt has saved."""
    context = session.current()
    try:
        found, _ = newest_complete(context.checkpoint_dir)
    except OSError:
        found = None
    if found is None:
        return latest_checkpoint()
    return Checkpoint(found.step, found.path)
