"""Keeps the work folder of a pool from filling up: removals that had to wait, and by age what nobody uses any more."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from gangline.agent import bundle
from gangline.backends.slurm.link import Link
from gangline.domain.errors import BackendError, GanglineError
from gangline.domain.gang import Cleared
from gangline.domain.pool import PoolStatus
from gangline.rundir.files import read_json, write_json
from gangline.rundir.home import Home

__all__ = ["AGE_S", "Caretaker"]

_log = logging.getLogger(__name__)

AGE_S = 30 * 86_400.0
"""How long nothing may have asked for what is removed by age."""
_EVERY_S = 86_400.0
_LOOK_S = 60.0


class Caretaker:
    """Removes; what cannot be done now is noted in the state folder, and done when the pool answers.

    Args:
        pool: its name.
    """

    def __init__(self, link: Link, home: Home, *, pool: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._link = link
        self._notes = home.path / "leaving" / pool
        self._monotonic = monotonic
        self._tidy_at = monotonic() + _LOOK_S
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look after the folder by itself."""
        self._thread = threading.Thread(target=self._run, name="gangline-caretaker", daemon=True)
        self._thread.start()

    def close(self, patience_s: float = 5.0) -> None:
        """End the thread."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(patience_s)

    def clear(self, run_id: str, *, keep_checkpoints: bool) -> Cleared:
        """Remove the folder of a run.

        Raises:
            Transient, AuthFailed: the pool does not answer; it is done when it does.
        """
        note = self._notes / f"{run_id}.json"
        write_json(note, {"version": 1, "keep_checkpoints": keep_checkpoints}, durable=True)
        cleared = self._link.clear(run_id, keep_checkpoints=keep_checkpoints)
        note.unlink(missing_ok=True)
        return cleared

    def look(self) -> None:
        """What is due is done, as far as the pool answers. Never opens a connection to tidy up."""
        try:
            for note in sorted(self._notes.glob("*.json")):
                self._make_up_for(note)
            if self._monotonic() >= self._tidy_at and self._link.state().status is PoolStatus.READY:
                self._tidy_at = self._monotonic() + _EVERY_S
                files, freed_bytes = self._link.tidy(bundle.bundle_name(bundle.render_bundle()), age_s=AGE_S)
                if files or freed_bytes:
                    _log.info("the work folder was tidied: %d files, %d bytes", files, freed_bytes)
        except (GanglineError, OSError) as error:
            _log.info("the work folder was not looked after: %s", error)

    def _make_up_for(self, note: Path) -> None:
        """One removal; what is wrong with it alone keeps no other from being done.

        Raises:
            BackendError: the pool does not answer.
        """
        try:
            told = read_json(note) or {}
            self._link.clear(note.stem, keep_checkpoints=bool(told.get("keep_checkpoints")))
            note.unlink(missing_ok=True)
        except BackendError:
            raise
        except (GanglineError, OSError) as error:
            _log.warning(
                "the folder of run %s in the pool could not be removed, and is tried again: %s", note.stem, error
            )

    def _run(self) -> None:
        while not self._ended.wait(_LOOK_S):
            self.look()
