"""The bridge's loop: a thread for each request, answers in the order in which they are ready. Standard library only."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from gangline.bridge.environ import render_command_environ
from gangline.bridge.frames import BrokenFrame, Frame, FrameReader, FrameWriter
from gangline.bridge.operations import OPERATIONS, Answer, FarSide, NoPython
from gangline.bridge.running import Commands
from gangline.bridge.watching import RunsWatch, is_on_nfs
from gangline.bridge.workfolder import WorkFolder
from gangline.domain.errors import GanglineError, InvalidRequest
from gangline.rundir.confined import UnsafePath
from gangline.rundir.mirror import Gap
from gangline.rundir.space import is_full

__all__ = ["QUIET_LIMIT_S", "Bridge", "serve"]

QUIET_LIMIT_S = 300.0
"""The other side asks every few seconds; a bridge that hears nothing for so long is one that nobody needs."""
_MOST_AT_ONCE = 256


class Bridge:
    """Answers requests until there are no more.

    Args:
        work: the work folder.
        read: gives some bytes of the requests as soon as there are any.
        write: takes some bytes of the answers.
    """

    def __init__(self, work: str, read: Callable[[int], bytes], write: Callable[[memoryview], int | None]) -> None:
        self._commands = Commands(render_command_environ(os.environ))
        watch = RunsWatch(f"{work}/runs", on_nfs=is_on_nfs(work))
        self._side = FarSide(work=WorkFolder(work), watch=watch, commands=self._commands)
        self._requests = FrameReader(self._hear(read))
        self._answers = FrameWriter(write)
        self._places = threading.BoundedSemaphore(_MOST_AT_ONCE)
        self.heard_at = time.monotonic()

    def serve(self) -> None:
        """Until the requests end. What runs then is ended."""
        try:
            while (frame := self._requests.next()) is not None:
                self._take(frame)
        except BrokenFrame:
            pass
        finally:
            self._commands.close()

    def close(self) -> None:
        """End what runs."""
        self._commands.close()

    def _hear(self, read: Callable[[int], bytes]) -> Callable[[int], bytes]:
        def hearing(num_bytes: int) -> bytes:
            data = read(num_bytes)
            self.heard_at = time.monotonic()
            return data

        return hearing

    def _take(self, frame: Frame) -> None:
        if frame.header.get("do") == "ping":  # answered whatever else hangs
            self._say({"id": frame.id, "ok": True, "time": time.time()})
            return
        self._places.acquire()
        try:
            threading.Thread(target=self._answer_and_leave, args=(frame,), daemon=True).start()
        except RuntimeError:  # the site allows its users few threads
            self._answer_and_leave(frame)

    def _answer_and_leave(self, frame: Frame) -> None:
        try:
            self._answer(frame)
        finally:
            self._places.release()

    def _answer(self, frame: Frame) -> None:
        try:
            said, payload = _act(self._side, frame)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other side is told
            self._say({"id": frame.id, "ok": False, "error": describe_error(error)})
            return
        self._say({"id": frame.id, "ok": True, **said}, payload)

    def _say(self, header: Mapping[str, Any], payload: bytes = b"") -> None:
        try:
            self._answers.send(header, payload)
        except OSError:
            self._commands.close()
            os._exit(0)  # nobody listens any more


def serve(work: str, read: Callable[[int], bytes]) -> None:
    """Be the bridge on this process's stdin and stdout, and end the process with it."""
    out = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):  # nobody else writes into the frames, and nobody waits for our stderr
        os.dup2(nothing, descriptor)
    bridge = Bridge(work, read, lambda data: os.write(out, data))

    def end(*_: int | FrameType | None) -> None:
        bridge.close()
        os._exit(0)

    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    threading.Thread(target=_end_when_quiet, args=(bridge, end), daemon=True).start()
    bridge.serve()
    os._exit(0)  # requests that hang in the file system do not hold it up


def describe_error(error: BaseException) -> dict[str, Any]:
    """What the other side is told: `kind` is what it acts on."""
    text = str(error) or type(error).__name__
    if isinstance(error, OSError):
        kind = "full" if is_full(error) else "files"
        return {"kind": kind, "text": f"{error.filename or ''}: {error.strerror or error}".lstrip(": ")}
    if isinstance(error, Gap):
        return {"kind": "gap", "text": text, "size": error.size}
    kinds: dict[type[Exception], str]
    kinds = {NoPython: "no_python", UnsafePath: "unsafe_path", InvalidRequest: "invalid", GanglineError: "refused"}
    for of, kind in kinds.items():
        if isinstance(error, of):
            return {"kind": kind, "text": text}
    return {"kind": "fault", "text": f"{type(error).__name__}: {text}"}


def _act(side: FarSide, frame: Frame) -> Answer:
    operation = OPERATIONS.get(str(frame.header.get("do")))
    if operation is None:
        raise InvalidRequest(f"The bridge knows no `{frame.header.get('do')}`")
    return operation(side, frame.header, frame.payload)


def _end_when_quiet(bridge: Bridge, end: Callable[[], None]) -> None:
    while time.monotonic() - bridge.heard_at < QUIET_LIMIT_S:
        time.sleep(QUIET_LIMIT_S / 20)
    end()


def main() -> int:
    """`agent.pyz bridge WORK`, started by hand or by `boot.py`."""
    match sys.argv[1:]:
        case ["bridge", work] if work.startswith("/") and os.path.isdir(work):
            serve(work, lambda num_bytes: os.read(0, num_bytes))
            return 0
    sys.stderr.write("gangline: call: bridge WORK, an absolute path of a folder\n")
    return 64
