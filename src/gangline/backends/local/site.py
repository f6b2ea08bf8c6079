"""The server's own machine as files and programs: which interpreters run, what checkpoint folders hold and take."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gangline.domain.errors import SpecInvalid
from gangline.domain.spec import RunSpec, SlurmOptions
from gangline.rundir.checkpoints import FoundCheckpoint, judge_folder
from gangline.rundir.commits import find_known

__all__ = ["LocalSite"]


class LocalSite:
    """Implements `gangline.ports.Site`."""

    def check(self, spec: RunSpec) -> None:
        if spec.slurm != SlurmOptions():
            raise SpecInvalid(
                f"Options of Slurm mean nothing in pool `{spec.pool}`",
                why="It is the server's own machine",
                fix="Choose a Slurm cluster with --pool (`gangline pools` lists them), or leave them out.",
            )

    def python(self, asked: str | None, client: Mapping[str, Any]) -> str:
        """The interpreter asked for, else the one that submits, else ours."""
        path = Path(asked or str(client.get("python") or "") or sys.executable)
        if not path.is_absolute():
            raise SpecInvalid(f"The interpreter `{path}` is not an absolute path", fix="Give --python the whole path.")
        if path.is_dir():
            return str(_python_in(path))
        _check_executable(path)
        return str(path)

    def unseen_python(self, asked: str | None) -> str:
        return asked or sys.executable

    def probe_writable(self, folder: str, flag: str) -> None:
        probe = Path(folder) / f".gangline-probe-{secrets.token_hex(6)}"
        try:
            probe.parent.mkdir(parents=True, exist_ok=True)
            probe.write_bytes(b"probe")
            probe.unlink()
        except OSError as error:
            probe_left = f" of {error.filename}" if error.filename and error.filename != str(probe) else ""
            raise SpecInvalid(
                f"Nothing can be written to `{folder}`",
                why=f"{error.strerror or error}{probe_left}",
                fix=f"Give {flag} a folder that you may write to.",
            ) from error

    def checkpoints(self, root: str) -> list[FoundCheckpoint]:
        try:
            return find_known(root)
        except OSError as error:
            raise SpecInvalid(
                f"`{root}` cannot be read", why=error.strerror or str(error), fix="Check who may read the folder."
            ) from error

    def checkpoint(self, folder: str) -> FoundCheckpoint | None:
        return judge_folder(Path(folder)) if Path(folder).is_dir() else None


def _python_in(folder: Path) -> Path:
    for name in ("python", "python3"):
        path = folder / "bin" / name
        if path.exists():
            _check_executable(path)
            return path
    raise SpecInvalid(
        f"`{folder}` is no environment of Python",
        why="It has no bin/python",
        fix="Give --python an interpreter, or the folder of a virtual or conda environment.",
    )


def _check_executable(path: Path) -> None:
    if not path.exists():
        raise SpecInvalid(f"There is no interpreter `{path}`", fix="Correct --python.")
    if not path.is_file() or not os.access(path, os.X_OK):
        raise SpecInvalid(f"`{path}` cannot be executed", fix="Give --python an interpreter.")
