"""What a rank has left behind when it ends: its exception, the end of its log, how far it came.

An exception is taken from the first of these that has one: the file that the injected `failure.py` writes, the file
that PyTorch's `record` writes, the traceback at the end of the log. Of a crash in compiled code (`crashes.py`) it is
known where the rank was. Standard library only.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gangline.agent.crashes import crash_signal, find_crash, with_crash
from gangline.domain.errors import GanglineError
from gangline.domain.traces import after_trace, find_error, find_place
from gangline.rundir.files import read_json
from gangline.rundir.layout import AttemptDir

__all__ = [
    "LastStep",
    "decide_error",
    "decide_printed",
    "parse_record",
    "read_error",
    "read_last_step",
    "read_left",
    "read_tail",
]

_METRIC_BYTES = 16_384
_MOST_RECORD_BYTES = 1 << 20
_CRASH_BYTES = 1 << 18
"""Of the file of stacks: up to 100 threads of 100 frames."""
_MESSAGE_CHARS = 4_000
_TRACEBACK_CHARS = 16_000
_MOST_CAUSES = 8
_HEADER = "Traceback "
_OF_SIGNALS = 128
"""From here on, an exit code tells of a signal that a shell has seen."""
_SAME_MOMENT_S = 0.5
"""Between two clocks, of the rank and of the file system, for what happens together."""
_CARRIES_LOG = re.compile(r"(^|\.)(CalledProcessError|ChildFailedError)$")
"""Exceptions that say only that another process failed; its own traceback stands above in the log."""
_CHILD_FAILED = re.compile(r"^(?P<what>\S.*) FAILED$", re.MULTILINE)
_ROOT_CAUSE = re.compile(
    r"^Root Cause.*?^\s*rank\s*:\s*(?P<rank>\d+).*?^\s*exitcode\s*:\s*(?P<code>-?\d+)"
    r"[^\n]*?(?:\((?P<signal>SIG\w+)\))?\s*$",
    re.MULTILINE | re.DOTALL,
)
"""Of the table that torchrun raises as a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastStep:
    """How far a rank came in this attempt, by what it reported."""

    step: int | None = None
    total: int | None = None
    phase: str | None = None
    """Name of the `gangline.phase` that it was in."""
    time: float | None = None
    """When it reported anything last; wall clock."""


def read_tail(path: Path, size_bytes: int, *, end: int | None = None) -> str:
    """The end of a file as text, or what stands before the offset `end`; "" where it cannot be read."""
    try:
        with path.open("rb") as file:
            last = file.seek(0, os.SEEK_END) if end is None else end
            first = file.seek(max(0, last - size_bytes))
            return file.read(last - first).decode("utf-8", "replace")
    except OSError:
        return ""


def read_error(
    folder: AttemptDir,
    rank: int,
    *,
    log: str,
    signal: int | None,
    exit_code: int | None = None,
    warn: Callable[[str], None],
) -> dict[str, Any] | None:
    """The exception that ended a rank, or where it was when it crashed, if any is known.

    With `in_log` it is no more than the last one that was printed, by a rank that then left in a way of its own.

    Args:
        log: the end of the rank's log.
        signal: what ended it; None: it exited.
        warn: told of what is there and cannot be read.
    """
    written: Mapping[str, Any] | None = None
    try:
        written = read_json(folder.error(rank))
    except (OSError, GanglineError) as trouble:
        warn(f"What rank {rank} wrote of its error cannot be read: {trouble}")
    with suppress(OSError):
        if written is None and folder.recorded_error(rank).stat().st_size <= _MOST_RECORD_BYTES:
            written = parse_record(folder.recorded_error(rank).read_text(encoding="utf-8", errors="replace"))
    error = decide_error(written, log=log, signal=signal)
    if error is not None and written is None and _left_otherwise(folder, rank, exit_code):
        error["in_log"] = True
    crash = crash_signal(exit_code, signal)
    if crash is None or (error is not None and find_place(str(error.get("traceback") or ""))):
        return error
    stack = _read_crash(folder, rank, crash, log)
    return with_crash(error, stack) if stack else error


def _left_otherwise(folder: AttemptDir, rank: int, exit_code: int | None) -> bool:
    """Whether a process ended with a code that no exception gives it, or with 1 by `os._exit`."""
    if not exit_code or exit_code >= _OF_SIGNALS:
        return False
    return exit_code != 1 or (folder.stacks(rank).exists() and not folder.left(rank).exists())


def _read_crash(folder: AttemptDir, rank: int, number: int, log: str) -> str:
    from gangline.agent.watch.taking import SourceLines  # noqa: PLC0415 - few ranks crash

    read_line = SourceLines().line
    told = find_crash(read_tail(folder.stacks(rank), _CRASH_BYTES), number, read_line=read_line)
    return told or find_crash(log, number, read_line=read_line)


def decide_error(written: Mapping[str, Any] | None, *, log: str, signal: int | None) -> dict[str, Any] | None:
    """From what a rank wrote of its exception, and the end of its log, to what it was. Pure."""
    if written is None:
        return _from_log(log, signal)
    error: dict[str, Any] = _as_unicode(written)
    kind, message = str(error.get("type") or ""), str(error.get("message") or "")
    inner = find_error(message)
    if inner is None and _CARRIES_LOG.search(kind):
        inner = _above(log, str(error.get("traceback") or ""))
    if inner is not None:
        causes = [{"type": inner["type"], "message": inner["message"]}, *inner["causes"], *error.get("causes", ())]
        error["causes"] = causes[:_MOST_CAUSES]
        if inner["traceback"] not in str(error.get("traceback")):
            error["traceback"] = f"{inner['traceback']}\n{error.get('traceback') or ''}"[-_TRACEBACK_CHARS:]
    if told := _child_failed(message):
        error["message"] = told
    return error


def _child_failed(message: str) -> str | None:
    """What torchrun's table says, in one line: `train.py FAILED: its rank 3 exited with code 2`."""
    what, root = _CHILD_FAILED.search(message), _ROOT_CAUSE.search(message)
    if what is None or root is None:
        return None
    end = f"was ended by {root['signal']}" if root["signal"] else f"exited with code {root['code']}"
    return f"{what[0]}: its rank {root['rank']} {end}"


def decide_printed(log: str, *, written: float, reported: float | None) -> dict[str, Any] | None:
    """The exception at the end of the log of a rank that did not end by itself. Pure.

    It may be why the rank was about to end, slowly; the rank may also have got over it, and been silent since.

    Args:
        log: as it was before the rank was told to end.
        written: when the log was last written; wall clock.
        reported: when the rank reported a step or the like last.
    """
    found = _from_log(log, None)
    if found is None or after_trace(log) or (reported is not None and reported > written + _SAME_MOMENT_S):
        return None
    return {**found, "time": written}


def parse_record(text: str) -> dict[str, Any] | None:
    """What PyTorch's `record` writes to TORCHELASTIC_ERROR_FILE, in our form. Pure."""
    try:
        raw = json.loads(text)
    except ValueError:
        return None
    said = raw.get("message") if isinstance(raw, Mapping) else None
    told: Mapping[str, Any] = said if isinstance(said, Mapping) else {"message": said}
    message = told.get("message")
    if not isinstance(message, str) or not message:
        return None
    extra = told.get("extraInfo")
    extra = extra if isinstance(extra, Mapping) else {}
    found = re.match(r"([A-Za-z_][\w.]*)(?:\(|: ?|$)", message)
    kind = found[1] if found else ""
    with_type = bool(found) and message.startswith(f"{kind}:")
    error: dict[str, Any] = {
        "type": kind,
        "message": (message[len(kind) + 1 :].strip() if with_type else message)[:_MESSAGE_CHARS],
        "traceback": str(extra.get("py_callstack") or "")[-_TRACEBACK_CHARS:],
        "causes": [],
    }
    with suppress(TypeError, ValueError):
        error["time"] = float(extra.get("timestamp", ""))
    return error


def read_left(path: Path) -> dict[str, Any] | None:
    """What a rank noted as its interpreter began to end: `{"time", "code", "error"}`; None where it noted nothing.

    `error` says where `sys.exit` was called; it has no type, for nothing was raised that says more than the code.
    """
    try:
        left = read_json(path)
    except (OSError, GanglineError):  # cut off
        return None
    if left is None or not isinstance(left.get("time"), int | float):
        return None
    code, trace = left.get("code"), str(left.get("traceback") or "")
    error = {"type": "", "message": "", "traceback": trace, "causes": [], "time": left["time"]} if trace else None
    return {"time": left["time"], "code": code if type(code) is int else None, "error": error}


def read_last_step(path: Path, attempt: int) -> LastStep:
    """How far a rank came, from the end of what it logged."""
    text = read_tail(path, _METRIC_BYTES)
    return _fold_steps(_records(text), attempt) if text else LastStep()


def _records(text: str) -> Iterable[Mapping[str, Any]]:
    for line in text.splitlines():
        with suppress(ValueError):
            record = json.loads(line)
            if isinstance(record, Mapping):
                yield record


def _fold_steps(records: Iterable[Mapping[str, Any]], attempt: int) -> LastStep:
    logged: int | None = None
    reported: int | None = None
    total: int | None = None
    time: float | None = None
    phases: list[str] = []
    for record in records:
        if record.get("a") != attempt:
            continue
        kind, step, time = record.get("k"), record.get("s"), _time_of(record, time)
        if kind == "p" and type(step) is int:
            reported, total = step, record.get("n") if type(record.get("n")) is int else total
        elif kind == "m" and type(step) is int:
            logged = step
        elif kind == "h" and isinstance(record.get("name"), str):
            phases = [name for name in phases if name != record["name"]]
            phases += [record["name"]] if record.get("on") else []
    step = reported if reported is not None else logged
    return LastStep(step=step, total=total, phase=phases[-1] if phases else None, time=time)


def _time_of(record: Mapping[str, Any], known: float | None) -> float | None:
    time = record.get("t")
    return float(time) if isinstance(time, int | float) else known


def _from_log(log: str, number: int | None) -> dict[str, Any] | None:
    """No file tells: `os._exit` after the traceback was printed, an interpreter of another kind, a shell around one."""
    if number in {signal.SIGINT, signal.SIGTERM}:
        found = find_error(log, only_thread=True)
    elif number is None or number == signal.SIGABRT:
        found = find_error(log)
        if found is not None and found["traceback"].startswith(_HEADER) and after_trace(log):
            return None  # it was printed, and got over
    else:
        return None
    if found is None or found["type"] in {"KeyboardInterrupt", "SystemExit"}:
        return None
    return {**found, "message": found["message"][:_MESSAGE_CHARS], "traceback": found["traceback"][-_TRACEBACK_CHARS:]}


def _as_unicode(value: Any) -> Any:  # noqa: ANN401 - JSON
    """What every reader can take: the text of an exception may hold half a character, or bytes of a file name."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {key: _as_unicode(one) for key, one in value.items()}
    return [_as_unicode(one) for one in value] if isinstance(value, list) else value


def _above(log: str, own: str) -> dict[str, Any] | None:
    """The traceback of another process in the log, above the rank's own."""
    lines = own.strip().splitlines()
    place = log.rfind(lines[-1]) if lines else -1
    start = log.rfind("Traceback (most recent call last):", 0, place) if place >= 0 else len(log)
    return find_error(log[: max(0, start)])
