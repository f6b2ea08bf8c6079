"""What attempts stand on: their folders, the source tree, the checkpoint that they start from.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gangline.agent.attempt import Attempt
from gangline.agent.foothold import Foothold
from gangline.agent.pulse import Pulse
from gangline.agent.site import Site
from gangline.agent.source import Looked, SourceTree
from gangline.agent.storage import Resume, find_missing_outputs, resolve_resume
from gangline.rundir.space import describe_full

__all__ = ["Groundwork"]


class Groundwork:
    """The files of one launch, as its leader looks at them before and after each attempt.

    Args:
        pulse: shows that the leader lives while it reads large checkpoints and restores the source tree.
        fresh: no attempt has run in the tree yet.
    """

    def __init__(self, site: Site, pulse: Pulse, *, fresh: bool, warn: Callable[[str], None]) -> None:
        self._site = site
        self._pulse = pulse
        self._warn = warn
        self._foothold = Foothold()
        self._foothold.hold(site.run.path)
        objects = site.launch.objects
        # None where there is no snapshot, or where its contents are not reached.
        whole = fresh and site.run.code_restored.exists()
        self._source = None if objects is None else SourceTree(site.run, Path(objects), fresh=whole)

    def make_folder(self, number: int) -> str:
        """Make the folder of an attempt, and look after it; why it can't be made, or ""."""
        folder = self._site.run.attempt(number).path
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._foothold.hold(folder)
        except OSError as error:
            return describe_full(folder, error)
        return ""

    def leave(self, number: int) -> None:
        """The attempt is over: its folder may go."""
        self._foothold.release(self._site.run.attempt(number).path)

    def prepare(self, attempt: Attempt) -> str:
        """Choose the checkpoint and put the source tree right; why the attempt must not start, or ""."""
        attempt.resume = self._choose_checkpoint(attempt.number)
        with self._pulse.busy():
            looked = Looked() if self._source is None else self._source.look(attempt.number)
        for note in filter(None, (*attempt.resume.notes, looked.describe())):
            self._warn(note)
        return attempt.resume.refused or looked.refused

    def _choose_checkpoint(self, number: int) -> Resume:
        launch = self._site.launch
        try:
            with self._pulse.busy():  # checking what large checkpoints hold takes its time
                return resolve_resume(launch, number)
        except OSError as error:
            return Resume(refused=f"checkpoints in {launch.checkpoint.path} cannot be read: {error}")

    def newest_step(self, number: int) -> int | None:
        """From where an attempt of this number would go on; None: from the beginning, or nobody can tell."""
        launch = self._site.launch
        try:
            with self._pulse.busy():
                return resolve_resume(launch, number).step
        except OSError as error:
            self._warn(f"Checkpoints in {launch.checkpoint.path} cannot be read: {error}.")
            return None

    def find_lost(self) -> Path | None:
        """A folder that is not where it was: somebody has removed or moved it."""
        return self._foothold.find_lost()

    def has_lost_all(self) -> bool:
        """Whether the run's own folder is gone, or another one in its place."""
        return self._foothold.has_lost(self._site.run.path)

    def missing_outputs(self) -> list[str]:
        """Declared outputs that are not there, each with what is wrong."""
        return find_missing_outputs(self._site.launch.outputs, self._site.workdir)

    def close(self) -> None:
        """Look after nothing any more."""
        self._foothold.close()
        if self._source is not None:
            self._source.close()
