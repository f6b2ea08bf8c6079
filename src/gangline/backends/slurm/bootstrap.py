"""How the bridge is started on the far side, whatever shell the user has there, and whatever that shell prints.

The command is one `sh -c '…'`, whose text has no character that sh, csh, tcsh, fish or zsh would treat between single
quotes. It finds a Python and starts a program of one line, which prints a marker and runs what it is then sent.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gangline.agent.bundle import bundle_name
from gangline.bridge import boot
from gangline.bridge.frames import MARKER, BrokenFrame, Frame, FrameReader
from gangline.domain.errors import Transient

__all__ = ["NO_PYTHON", "PYTHONS", "Bootstrap", "render_command"]

PYTHONS = ("python3.14", "python3.13", "python3.12", "python3.11", "python3.10", "python3")
NO_PYTHON = "GANGLINE-NO-PYTHON"
_MOST_JUNK_BYTES = 1 << 20
_HARMLESS = re.compile(r"[A-Za-z0-9 _./+~@%=:,-]+")
_CHECK = "import sys; sys.exit(sys.version_info < (3, 10))"
_PROGRAM = (
    "import sys;print();print(sys.argv[1],sys.argv[2],flush=True);"
    "exec(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))"
)
_VERSION = "import sys; print(sys.executable, sys.version.split()[0])"


def render_command(token: str, python: str | None = None) -> str:
    """What the login shell is to run.

    Raises:
        Transient: the pool's `python` has characters that no shell could be trusted with.
    """
    if python is not None and not _HARMLESS.fullmatch(python):
        raise Transient(
            f"`python: {python}` of the pool cannot be started",
            why="Its path has characters that shells treat",
            fix="Give it a link with a plain name, and name that.",
        )
    names = " ".join(f'"{name}"' for name in ([python] if python else PYTHONS))
    return (
        f"exec sh -c 'for p in {names}; do "
        f'if command -v "$p" >/dev/null 2>&1 && "$p" -I -S -c "{_CHECK}" </dev/null >/dev/null 2>&1; then '
        f'exec "$p" -I -S -B -c "{_PROGRAM}" {MARKER} {token}; fi; done; echo; echo {NO_PYTHON} {token}; '
        f'for p in {names}; do "$p" -c "{_VERSION}" </dev/null 2>&1; done\''
    )


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """One start, from the marker to the first frame of the bridge.

    Args:
        token: as in the command.
        work: the pool's work folder.
        bundle: the agents' zipapp; sent if the work folder lacks it.
        host: for messages.
    """

    token: str
    work: str
    bundle: bytes
    host: str

    def run(self, reader: FrameReader, write: Callable[[bytes], None]) -> bool:
        """Go through it; False: the stream ended before the marker, so whoever carried it knows why.

        Raises:
            Transient: there is no Python, or the work folder cannot be used.
            BrokenFrame, OSError: the connection was lost.
        """
        if not self._await_marker(reader):
            return False
        source = Path(boot.__file__).read_bytes()
        packed = zlib.compress(self.bundle)
        asked = {
            "work": self.work,
            "bundle": bundle_name(self.bundle),
            "digest": hashlib.sha256(self.bundle).hexdigest(),
            "size": len(self.bundle),
            "packed": len(packed),
        }
        write(b"%d\n%s%s\n" % (len(source), source, json.dumps(asked).encode()))
        if self._heed(reader.next()):
            write(packed)
            self._heed(reader.next())
        return True

    def _await_marker(self, reader: FrameReader) -> bool:
        passed_bytes = 0
        while (line := reader.line()) is not None:
            match line.rstrip(b"\r").decode("ascii", "replace").split(" "):
                case [found, self.token] if found == MARKER:
                    return True
                case [found, self.token] if found == NO_PYTHON:
                    raise self._no_python(reader)
            passed_bytes += len(line) + 1
            if passed_bytes > _MOST_JUNK_BYTES:
                raise BrokenFrame(f"the login shell of {self.host} prints without end")
        return False

    def _no_python(self, reader: FrameReader) -> Transient:
        found: list[str] = []
        while (line := reader.line()) is not None and len(found) < len(PYTHONS):
            found.append(line.decode(errors="replace").strip()[:200])
        there = "; ".join(text for text in found if text)
        return Transient(
            f"There is no Python >= 3.10 on {self.host}",
            why=f"Found: {there}" if there else "",
            fix="Name one in the pool's `python:` in pools.yaml (one of a module or of conda will do).",
        )

    def _heed(self, frame: Frame | None) -> bool:
        """Whether the zipapp is wanted."""
        if frame is None:
            raise BrokenFrame("the bridge ended while it started")
        if not frame.header.get("ok"):
            raise Transient(
                f"The work folder `{self.work}` of the pool cannot be used on {self.host}",
                why=str(frame.header.get("error")),
                fix="Make it writable, or name another one in pools.yaml.",
                brief=f"The work folder `{self.work}` of the pool cannot be used: {frame.header.get('error')}.",
            )
        return bool(frame.header.get("want"))
