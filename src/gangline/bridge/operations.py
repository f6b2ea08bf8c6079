"""What the bridge can do, by name (`docs/contributing/architecture.md`, "Slurm pools"). Standard library only."""

from __future__ import annotations

import os
import platform
import pwd
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gangline.bridge.frames import MAX_PAYLOAD_BYTES
from gangline.bridge.running import Commands
from gangline.bridge.watching import RunsWatch
from gangline.bridge.workfolder import WorkFolder, probe
from gangline.domain.errors import InvalidRequest
from gangline.domain.version import VERSION

__all__ = ["OPERATIONS", "Answer", "FarSide"]

Answer = tuple[dict[str, Any], bytes]
_PYTHONS = ("python3.14", "python3.13", "python3.12", "python3.11", "python3.10", "python3")
_LEAST_PYTHON = (3, 10)
_ASK_PYTHON = "import sys; print('GANGLINE', *sys.version_info[:3], sys.executable)"
_PYTHON_PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FarSide:
    """What the operations work with."""

    work: WorkFolder
    watch: RunsWatch
    commands: Commands


class NoPython(Exception):
    """There is no interpreter that could run agents."""


def _hello(_: FarSide, __: Mapping[str, Any], ___: bytes) -> Answer:
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a user that the directory service does not know at this moment
        user = os.environ.get("USER") or str(os.getuid())
    said = {"version": VERSION, "python": sys.executable, "python_version": platform.python_version()}
    here = {"host": os.uname().nodename, "user": user, "home": os.path.expanduser("~"), "time": time.time()}
    return {**said, **here}, b""


def _run(side: FarSide, asked: Mapping[str, Any], payload: bytes) -> Answer:
    argv = [str(argument) for argument in asked["argv"]]
    ended = side.commands.run(argv, stdin=payload, timeout_s=float(asked["timeout_s"]), env=asked.get("env") or {})
    return {"rc": ended.rc, "out": len(ended.out), "err": len(ended.err)}, ended.out + ended.err


def _missing(side: FarSide, asked: Mapping[str, Any], _: bytes) -> Answer:
    return {"digests": side.work.missing(asked["digests"])}, b""


def _store(side: FarSide, asked: Mapping[str, Any], payload: bytes) -> Answer:
    for digest, data in _split(asked["objects"], payload):
        side.work.store(digest, data)
    return {}, b""


def _adopt(side: FarSide, asked: Mapping[str, Any], _: bytes) -> Answer:
    side.work.adopt(asked["digest"])
    return {}, b""


def _write(side: FarSide, asked: Mapping[str, Any], payload: bytes) -> Answer:
    side.work.write(asked["path"], payload, int(asked["mode"]))
    return {}, b""


def _append(side: FarSide, asked: Mapping[str, Any], payload: bytes) -> Answer:
    return {"size": side.work.append(asked["path"], int(asked["offset"]), payload)}, b""


def _changes(side: FarSide, asked: Mapping[str, Any], _: bytes) -> Answer:
    began = time.monotonic()
    found = side.watch.changes(asked["runs"], asked.get("since"))
    return {**found, "took_s": time.monotonic() - began}, b""


def _read(side: FarSide, asked: Mapping[str, Any], _: bytes) -> Answer:
    """As much as one frame holds; who asks for more is told so at the first read that does not fit."""
    left, found = MAX_PAYLOAD_BYTES, []
    for run, path, offset, num_bytes in asked["reads"]:
        if num_bytes < 0 or offset < 0 or num_bytes > left:
            raise InvalidRequest(f"{num_bytes} bytes of `{path}` from {offset} on are too much for one answer")
        data = side.work.read(run, path, offset, num_bytes)
        left -= len(data or b"")
        found.append(data)
    return {"sizes": [None if data is None else len(data) for data in found]}, b"".join(data or b"" for data in found)


def _probe(_: FarSide, asked: Mapping[str, Any], __: bytes) -> Answer:
    return probe(_absolute(asked["folder"])), b""


def _checkpoints(_: FarSide, asked: Mapping[str, Any], __: bytes) -> Answer:
    from gangline.rundir.commits import find_known  # noqa: PLC0415 - few ask

    folder = _absolute(asked["folder"])
    return {"checkpoints": [{**asdict(one), "path": str(one.path)} for one in find_known(folder)]}, b""


def _clear(side: FarSide, asked: Mapping[str, Any], _: bytes) -> Answer:
    from gangline.bridge.tidying import remove_run  # noqa: PLC0415 - few ask

    return remove_run(side.work.root, asked["run"], keep_checkpoints=bool(asked["keep_checkpoints"])), b""


def _tidy(side: FarSide, asked: Mapping[str, Any], _: bytes) -> Answer:
    from gangline.bridge.tidying import tidy  # noqa: PLC0415 - few ask

    return tidy(side.work.root, agent=asked["agent"], age_s=float(asked["age_s"]), now=time.time()), b""


def _python(side: FarSide, asked: Mapping[str, Any], _: bytes) -> Answer:
    wanted = asked.get("path")
    tried = []
    for name in [wanted] if wanted else _PYTHONS:
        found = side.commands.find(name)
        if found is None:
            tried.append(f"{name}: not found")
            continue
        ended = side.commands.run([found, "-I", "-c", _ASK_PYTHON], timeout_s=_PYTHON_PATIENCE_S)
        match ended.out.decode(errors="replace").strip().rpartition("GANGLINE ")[2].split(" ", 3):
            case [major, minor, micro, path] if ended.rc == 0:
                if (int(major), int(minor)) >= _LEAST_PYTHON:
                    return {"path": path or found, "version": f"{major}.{minor}.{micro}"}, b""
                tried.append(f"{found}: {major}.{minor}.{micro}")
            case _:
                tried.append(f"{found}: {_last_line(ended.err) or f'ended with {ended.rc}'}")
    raise NoPython("; ".join(tried))


def _split(objects: list[tuple[str, int]], payload: bytes) -> Iterator[tuple[str, bytes]]:
    offset = 0
    for digest, size in objects:
        yield digest, payload[offset : offset + size]
        offset += size


def _absolute(folder: str) -> str:
    if not folder.startswith("/"):
        raise InvalidRequest(f"`{folder}` is no absolute path")
    return folder


def _last_line(text: bytes) -> str:
    lines = text.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


OPERATIONS: Mapping[str, Callable[[FarSide, Mapping[str, Any], bytes], Answer]] = {
    "hello": _hello,
    "run": _run,
    "missing": _missing,
    "store": _store,
    "adopt": _adopt,
    "write": _write,
    "append": _append,
    "changes": _changes,
    "read": _read,
    "probe": _probe,
    "checkpoints": _checkpoints,
    "python": _python,
    "clear": _clear,
    "tidy": _tidy,
}
