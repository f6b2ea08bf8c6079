"""The state folder of a server: `GANGLINE_HOME`, by default `~/.gangline`, readable by its owner alone.

Standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gangline.rundir.layout import RunDir

__all__ = ["Home"]


@dataclass(frozen=True, slots=True)
class Home:
    """Paths in the state folder."""

    path: Path

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> Home:
        """The folder that the environment names, else `~/.gangline`; absolute."""
        return cls(Path(env.get("GANGLINE_HOME") or "~/.gangline").expanduser().absolute())

    def create(self) -> Home:
        """Make the folder and its parts, for the owner alone."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.chmod(0o700)
        for folder in (self.runs, self.objects, self.snapshots):
            folder.mkdir(exist_ok=True)
        return self

    @property
    def lock(self) -> Path:
        return self.path / "server.lock"

    @property
    def server(self) -> Path:
        return self.path / "server.json"

    @property
    def server_log(self) -> Path:
        return self.path / "server.log"

    @property
    def token(self) -> Path:
        return self.path / "token"

    @property
    def database(self) -> Path:
        return self.path / "gangline.db"

    @property
    def suspect(self) -> Path:
        """Exists once the database has shown damage: the next server checks the whole of it."""
        return self.path / "gangline.db.suspect"

    @property
    def objects(self) -> Path:
        return self.path / "objects"

    @property
    def snapshots(self) -> Path:
        return self.path / "snapshots"

    @property
    def answers(self) -> Path:
        """What agents have learnt of interpreters; may be deleted."""
        return self.path / "answers"

    @property
    def pools(self) -> Path:
        """What people configure beside the local pool."""
        return self.path / "pools.yaml"

    @property
    def known_pools(self) -> Path:
        """The pools as they were last understood, and those that are gone from the file but still have runs."""
        return self.path / "pools.known.json"

    @property
    def kept(self) -> Path:
        """Checkpoints of runs that were removed, by run."""
        return self.path / "kept"

    @property
    def runs(self) -> Path:
        return self.path / "runs"

    def run(self, run_id: str) -> RunDir:
        return RunDir(self.runs / run_id)
