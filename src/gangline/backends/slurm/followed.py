"""What the ferry knows of one run that it follows. Nothing of it has to survive: the files say how far they are.

Standard library and domain alone; no thread, no file is touched.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gangline.domain.errors import Conflict, InvalidRequest
from gangline.rundir.mirror import FileState

__all__ = ["Finishing", "Followed"]

_ASK_AGAIN_S = 5.0


@dataclass(slots=True)
class Finishing:
    """Somebody wants to know when the mirror holds all that a launch has left."""

    launch: int
    looked_at: float | None = None
    """When the first look that began after the question had ended, whatever it found."""
    is_done: bool = False


@dataclass(slots=True)
class Followed:
    """One run."""

    told_at: float | None = None
    """When everything was told of it, not only what has changed; None: that is to be asked."""
    pending: dict[str, FileState] = field(default_factory=dict)
    """Files of which there is more than the mirror has, those that have waited longest first."""
    refused: dict[str, str] = field(default_factory=dict)
    """Of those, files that cannot be copied as they are, and why."""
    blocked: str = ""
    """Why the mirror cannot be written."""
    pushed_bytes: int | None = None
    """How much of `control.jsonl` is there; None: it has not been asked yet."""
    unpushed: str = ""
    """Why no more of it could be sent."""
    alive: tuple[int, int] | None = None
    """The newest launch there, and the time of its sign of life, as it is shown here."""
    said: str = ""
    """What was wrong at the end of the last round, for people; "" where nothing was."""
    finishing: Finishing | None = None
    mirrored: float | None = None
    """By the wall clock here: when a look began of which all was copied that can be."""

    @property
    def is_complete(self) -> bool:
        """Whether all that was told of is here, but for what cannot be copied as it is."""
        return self.told_at is not None and not self.blocked and self.pending.keys() <= self.refused.keys()

    @property
    def problem(self) -> str:
        """What is wrong now."""
        if self.blocked or self.unpushed:
            return self.blocked or self.unpushed
        if not self.refused:
            return ""
        path, why = next(iter(self.refused.items()))
        more = f" (and {len(self.refused) - 1} more)" if len(self.refused) > 1 else ""
        return f"{path} cannot be copied: {why}{more}"

    def wants_all(self, now: float) -> bool:
        """Whether everything is to be asked: what cannot be copied may be gone, and the end has to be sure."""
        if self.told_at is None or (self.finishing is not None and self.finishing.looked_at is None):
            return True
        return bool(self.refused) and now - self.told_at > _ASK_AGAIN_S

    def tell(self, states: Iterable[FileState], *, all_at: float | None = None) -> None:
        """Files have changed at the source; with a time, these are all that there are."""
        if all_at is not None:
            self.told_at = all_at
            self.pending.clear()
        for state in states:
            self.pending[state.path] = state
            if all_at is None:
                self.refused.pop(state.path, None)
        if all_at is not None:
            self.refused = {path: why for path, why in self.refused.items() if path in self.pending}

    def note(self, state: FileState, error: Exception | None) -> None:
        """How a file went."""
        if error is None:
            if self.pending.get(state.path) == state:
                del self.pending[state.path]
            self.refused.pop(state.path, None)
        elif isinstance(error, FileNotFoundError | InvalidRequest):
            self.refused[state.path] = str(error)
        elif not isinstance(error, Conflict):  # that one has changed meanwhile, which is told next time
            self.blocked = str(error)

    def serve_last(self, path: str) -> None:
        """It had its turn, and is not done: others come first next time."""
        if path in self.pending:
            self.pending[path] = self.pending.pop(path)

    def finish(self, launch: int) -> Finishing:
        """Somebody wants to know; of an earlier question about the same launch the answer holds."""
        if self.finishing is None or self.finishing.launch != launch:
            self.finishing = Finishing(launch)
        return self.finishing

    def conclude(self, finishing: Finishing, now: float, *, lacks_result: bool, patience_s: float) -> None:
        """A look at all of the run that began after the question has ended, and all that it found was tried.

        What may still become visible (a result that is not there, a file that cannot be read) is waited for, for a
        while; what the mirror's disk does not take is waited for without end.
        """
        if finishing.looked_at is None:
            finishing.looked_at = now
        open_paths = self.pending.keys() - self.refused.keys()
        if open_paths or self.blocked:
            return
        is_late = now - finishing.looked_at >= patience_s
        if (self.refused or lacks_result) and not is_late:
            return
        finishing.is_done = True
