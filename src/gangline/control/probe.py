"""Checks of a spec that touch this machine: the interpreter runs, the checkpoint folder takes files or holds some."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gangline.domain.errors import SpecInvalid
from gangline.rundir.checkpoints import newest_complete

__all__ = ["find_python", "probe_checkpoint", "probe_writable"]


def find_python(python: str | None, client: Mapping[str, Any]) -> str:
    """The interpreter that runs the ranks, as an absolute path.

    The one asked for, else the one that submits, else ours.

    Args:
        python: an interpreter, or the folder of a virtual or conda environment.
        client: may say under `python` which interpreter the command line runs on.
    Raises:
        SpecInvalid: there is no such file, or it cannot be executed.
    """
    path = Path(python or str(client.get("python") or "") or sys.executable)
    if not path.is_absolute():
        raise SpecInvalid(f"The interpreter `{path}` is not an absolute path", fix="Give --python the whole path.")
    if path.is_dir():
        return str(_python_in(path))
    _check_executable(path)
    return str(path)


def probe_writable(folder: Path, flag: str) -> None:
    """Write a file into a folder, which is made if it is missing, and remove it.

    Raises:
        SpecInvalid: that did not work; it says why.
    """
    probe = folder / f".gangline-probe-{secrets.token_hex(6)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"probe")
        probe.unlink()
    except OSError as error:
        probe_left = f" of {error.filename}" if error.filename and error.filename != str(probe) else ""
        raise SpecInvalid(
            f"Nothing can be written to `{folder}`",
            why=f"{error.strerror or error}{probe_left}",
            fix=f"Give {flag} a folder that you may write to.",
        ) from error


def probe_checkpoint(folder: Path) -> None:
    """Look for a checkpoint to start from.

    Raises:
        SpecInvalid: there is none that is complete; what was found instead is named.
    """
    fix = "Name the folder that holds one with --checkpoint-path, or leave --resume required out."
    if not folder.is_dir():
        raise SpecInvalid(f"--resume required finds no folder `{folder}`", fix=fix)
    try:
        found, skipped = newest_complete(folder)
    except OSError as error:
        raise SpecInvalid(f"`{folder}` cannot be read", why=error.strerror or str(error), fix=fix) from error
    if found is None:
        why = f"{skipped[0].path.name} is not: {skipped[0].why_not}" if skipped else "It holds no checkpoint at all"
        raise SpecInvalid(f"--resume required finds no complete checkpoint in `{folder}`", why=why, fix=fix)


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
