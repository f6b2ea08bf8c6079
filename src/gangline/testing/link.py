"""A bridge without a connection: this machine is the login node, its commands are those on PATH."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gangline.backends.slurm.link import Changes, Hello, Probed, Ran
from gangline.domain.errors import BackendError
from gangline.rundir.checkpoints import find_checkpoints
from gangline.rundir.files import write_bytes

__all__ = ["LocalLink"]


class LocalLink:
    """Implements `gangline.backends.slurm.link.Link`.

    Args:
        work: the pool's work folder, on this machine.
        env: of the commands.
        user: whom the far side says that it is.
    """

    def __init__(self, work: Path, *, env: Mapping[str, str] = os.environ, user: str = "alice") -> None:
        self.work = work
        self.user = user
        self.env = dict(env)
        self.asked: list[str] = []
        """Names of the methods that were called."""
        self.stored: list[str] = []
        """Digests of what was sent."""
        self.error: BackendError | None = None
        """What every call raises."""

    def hello(self) -> Hello:
        self._note("hello")
        version = ".".join(str(number) for number in sys.version_info[:3])
        said = {"host": "head", "user": self.user, "home": str(self.work), "python": sys.executable}
        return Hello(**said, python_version=version, clock_offset_s=0.0)

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> Ran:
        self._note("run")
        try:
            done = subprocess.run(
                list(argv), input=stdin, capture_output=True, env=self.env, timeout=timeout_s, check=False
            )
        except FileNotFoundError:
            return Ran(rc=127, out="", err=f"{argv[0]}: command not found\n")
        except subprocess.TimeoutExpired:
            return Ran(rc=None, out="", err="")
        return Ran(rc=done.returncode, out=done.stdout.decode(), err=done.stderr.decode())

    def missing(self, digests: Sequence[str]) -> list[str]:
        self._note("missing")
        return [digest for digest in digests if not self._object(digest).exists()]

    def store(self, objects: Iterable[tuple[str, bytes]]) -> None:
        self._note("store")
        for digest, data in objects:
            assert hashlib.sha256(data).hexdigest() == digest  # noqa: S101 - what the far side would refuse
            write_bytes(self._object(digest), data)
            self.stored.append(digest)

    def write(self, path: str, data: bytes, *, mode: int = 0o600) -> None:
        self._note("write")
        write_bytes(self.work / path, data, mode=mode)

    def append(self, path: str, offset: int, data: bytes) -> int:
        self._note("append")
        target = self.work / path
        target.parent.mkdir(parents=True, exist_ok=True)
        size = target.stat().st_size if target.exists() else 0
        assert offset <= size, "a gap"  # noqa: S101 - what the far side would refuse
        with target.open("ab") as file:
            file.write(data[size - offset :])
        return target.stat().st_size

    def changes(self, runs: Sequence[str], since: object) -> Changes:  # noqa: ARG002 - everything, each time
        self._note("changes")
        files: dict[str, list[tuple[str, int, int, int]]] = {}
        for run in runs:
            folder = self.work / "runs" / run
            found = ((path, path.stat()) for path in folder.rglob("*") if path.is_file())
            files[run] = [
                (str(path.relative_to(folder)), stat.st_size, stat.st_mtime_ns, stat.st_ino) for path, stat in found
            ]
        gone = frozenset(run for run in runs if not (self.work / "runs" / run).is_dir())
        return Changes(since=time.time(), files=files, alive={}, gone=gone)

    def read(self, reads: Sequence[tuple[str, str, int, int]]) -> list[bytes | None]:
        self._note("read")
        return [self._read(self.work / "runs" / run / path, offset, size) for run, path, offset, size in reads]

    def probe(self, folder: str) -> Probed:
        self._note("probe")
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            return Probed(exists=False, writable=False, free_bytes=0, why_not=str(error))
        volume = os.statvfs(folder)
        return Probed(exists=True, writable=os.access(folder, os.W_OK), free_bytes=volume.f_bavail * volume.f_frsize)

    def checkpoints(self, folder: str) -> list[dict[str, Any]]:
        self._note("checkpoints")
        return [{**asdict(one), "path": str(one.path)} for one in find_checkpoints(folder)]

    def python(self, path: str | None) -> tuple[str, str]:
        self._note("python")
        return path or sys.executable, self.hello().python_version

    def _note(self, name: str) -> None:
        if self.error is not None:
            raise self.error
        self.asked.append(name)

    def _object(self, digest: str) -> Path:
        return self.work / "objects" / digest[:2] / digest[2:]

    @staticmethod
    def _read(path: Path, offset: int, size: int) -> bytes | None:
        try:
            with path.open("rb") as file:
                file.seek(offset)
                return file.read(size)
        except FileNotFoundError:
            return None
