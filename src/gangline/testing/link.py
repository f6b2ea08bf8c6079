"""A bridge without a connection: this machine is the login node, its commands are those on PATH.

What it does with files is what the far side does, done in this process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gangline.backends.slurm.link import Changes, Hello, Probed, Ran
from gangline.bridge.tidying import remove_run, tidy
from gangline.bridge.watching import RunsWatch
from gangline.bridge.workfolder import WorkFolder, probe
from gangline.domain.errors import AuthFailed, BackendError, Transient
from gangline.domain.gang import Cleared
from gangline.domain.pool import PoolState, PoolStatus
from gangline.rundir.commits import find_known
from gangline.rundir.mirror import FileState
from gangline.rundir.pull import Wanted, pull

__all__ = ["LocalLink", "pull_run"]


class LocalLink:
    """Implements `gangline.backends.slurm.link.Link`.

    Args:
        work: the pool's work folder, on this machine; made if it is missing.
        env: of the commands.
        user: whom the far side says that it is.
    """

    def __init__(self, work: Path, *, env: Mapping[str, str] = os.environ, user: str = "alice") -> None:
        (work / "runs").mkdir(parents=True, exist_ok=True)
        self.work = work
        self.user = user
        self.env = dict(env)
        self.asked: list[str] = []
        """Names of the methods that were called."""
        self.stored: list[str] = []
        """Digests of what was sent."""
        self.error: BackendError | None = None
        """What every call raises."""
        self._files = WorkFolder(str(work))
        self.restart()

    def restart(self) -> None:
        """As a bridge that was started again: what it has told before is forgotten."""
        self._watch = RunsWatch(str(self.work / "runs"))

    def hello(self) -> Hello:
        self._note("hello")
        version = ".".join(str(number) for number in sys.version_info[:3])
        said = {"host": "head", "user": self.user, "home": str(self.work), "python": sys.executable}
        return Hello(**said, python_version=version, clock_offset_s=0.0)

    def state(self) -> PoolState:
        if self.error is None:
            return PoolState()
        needs_login = isinstance(self.error, AuthFailed)
        status = PoolStatus.LOGIN_NEEDED if needs_login else PoolStatus.UNREACHABLE
        return PoolState(status=status, text=str(self.error), command="gangline pools login far" if needs_login else "")

    def retry(self) -> None:
        """There is no pause between tries."""

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> Ran:
        self._note("run")
        try:
            done = subprocess.run(
                list(argv), input=stdin, capture_output=True, env=self.env, timeout=timeout_s, check=False
            )
        except FileNotFoundError:
            return Ran(rc=127, out="", err=f"{argv[0]}: command not found\n")
        except PermissionError as error:
            return Ran(rc=126, out="", err=f"{argv[0]}: {error}\n")
        except subprocess.TimeoutExpired:
            return Ran(rc=None, out="", err="")
        return Ran(rc=done.returncode, out=done.stdout.decode(), err=done.stderr.decode())

    def missing(self, digests: Sequence[str]) -> list[str]:
        self._note("missing")
        return self._files.missing(digests)

    def store(self, objects: Iterable[tuple[str, bytes]]) -> None:
        self._note("store")
        for digest, data in objects:
            self._files.store(digest, data)
            self.stored.append(digest)

    def write(self, path: str, data: bytes, *, mode: int = 0o600) -> None:
        self._note("write")
        self._files.write(path, data, mode)

    def append(self, path: str, offset: int, data: bytes) -> int:
        self._note("append")
        try:
            return self._files.append(path, offset, data)
        except OSError as error:
            raise Transient("The far side could not do it", why=str(error)) from error

    def changes(self, runs: Sequence[str], since: object) -> Changes:
        self._note("changes")
        found = self._watch.changes(runs, since)
        files = {run: [(f[0], f[1], f[2], f[3]) for f in listed] for run, listed in found["files"].items()}
        alive = {run: (launch, at_ns) for run, (launch, at_ns) in found["alive"].items()}
        return Changes(since=found["since"], files=files, alive=alive, gone=frozenset(found["gone"]))

    def read(self, reads: Sequence[tuple[str, str, int, int]]) -> list[bytes | None]:
        self._note("read")
        return [self._files.read(*one) for one in reads]

    def probe(self, folder: str) -> Probed:
        self._note("probe")
        return Probed(**probe(folder))

    def checkpoints(self, folder: str) -> list[dict[str, Any]]:
        self._note("checkpoints")
        return [{**asdict(one), "path": str(one.path)} for one in find_known(folder)]

    def clear(self, run: str, *, keep_checkpoints: bool) -> Cleared:
        self._note("clear")
        return Cleared(**remove_run(str(self.work), run, keep_checkpoints=keep_checkpoints))

    def tidy(self, agent: str, *, age_s: float) -> tuple[int, int]:
        self._note("tidy")
        found = tidy(str(self.work), agent=agent, age_s=age_s, now=time.time())
        return found["files"], found["freed_bytes"]

    def python(self, path: str | None) -> tuple[str, str]:
        self._note("python")
        return path or sys.executable, self.hello().python_version

    def _note(self, name: str) -> None:
        if self.error is not None:
            raise self.error
        self.asked.append(name)


def pull_run(run_dir: Path, copy: Path, *, piece_bytes: int = 1 << 18) -> dict[str, str]:
    """Bring the copy of one run directory (`…/runs/<run>`) up to date; what could not be copied, and why."""
    link = LocalLink(run_dir.parents[1])
    copy.mkdir(parents=True, exist_ok=True)
    listed = link.changes([run_dir.name], None).files.get(run_dir.name, ())
    wanted = [Wanted(run_dir.name, FileState(*one), copy) for one in listed]
    copied = pull(link.read, wanted, piece_bytes=piece_bytes)
    return {one.wanted.state.path: str(one.error) for one in copied if one.error is not None}
