"""Whether a program that is to run the ranks is a Python: asked once, remembered while the file stays the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from gangline.domain.errors import SpecInvalid
from gangline.rundir.files import write_text

__all__ = ["check_python"]

_QUESTION = ("-S", "-c", "import sys; print('python', *sys.version_info[:3])")
_TIMEOUT_S = 30.0
_MOST_REMEMBERED = 50


def check_python(python: Path, *, memory: Path, environ: Mapping[str, str] = os.environ) -> None:
    """Run an interpreter to see that it is one; this process's own, and one that has answered before, are believed.

    Args:
        python: absolute.
        memory: file in which answers are kept; it appears with the first.
    Raises:
        SpecInvalid: it is no Python, or does not start.
    """
    if python == Path(sys.executable):
        return
    mark = _mark(python)
    known = _load(memory)
    if known.get(str(python)) == mark:
        return
    _ask(python, environ)
    kept = dict([*((path, found) for path, found in known.items() if path != str(python)), (str(python), mark)])
    with suppress(OSError):  # nothing is lost but a few milliseconds next time
        memory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_text(memory, json.dumps(dict(list(kept.items())[-_MOST_REMEMBERED:])))


def _ask(python: Path, environ: Mapping[str, str]) -> None:
    try:
        done = subprocess.run(
            [str(python), *_QUESTION],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _no_python(python, f"It does not answer within {_TIMEOUT_S:.0f} s.") from None
    except (OSError, ValueError) as error:
        raise _no_python(python, f"It cannot be started: {getattr(error, 'strerror', None) or error}.") from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise _no_python(python, ": ".join([f"Asked for its version, it ended with {done.returncode}", *said]))
    if not done.stdout.startswith(b"python "):
        raise _no_python(python, "Asked for its version, it did not tell one.")


def _no_python(python: Path, why: str) -> SpecInvalid:
    return SpecInvalid(
        f"{python} is no Python that runs",
        why=why,
        fix="Name an interpreter, or the folder of a virtual or conda environment, with --python.",
    )


def _mark(python: Path) -> list[int]:
    """What changes when the file does, or the link that leads to it."""
    found = [python.stat(), python.lstat()]
    return [number for stat in found for number in (stat.st_mtime_ns, stat.st_size, stat.st_ino)]


def _load(memory: Path) -> dict[str, object]:
    """Answers of before; none where the file is missing or damaged."""
    try:
        known = json.loads(memory.read_bytes())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
