"""The exception that ended a rank, as JSON next to its log.

`inject.py` copies this text next to the injected `sitecustomize`, which loads it when a rank fails. It therefore
imports nothing of Gangline, and nothing at its top that a fresh interpreter has not loaded.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

__all__ = ["describe", "write_failure", "write_left"]

_TRACEBACK_CHARS = 16_000
_MESSAGE_CHARS = 4_000
_MOST_FRAMES = 200
_MOST_CAUSES = 8
_DYING_S = 0.5
"""How long a process that has closed its sockets may take to be gone."""
_TALK = ("connection.py", "reduction.py", "reductions.py", "resource_sharer.py")
"""Files of packages called `multiprocessing` in which a process talks to those that it has started."""
_RECURSION_LIMIT = 1000
"""What describing an error takes, and more than a script may have left to itself."""


def write_failure(path: str, error: BaseException, callers: "Sequence[tuple[str, int, str]]" = ()) -> None:
    """Describe the exception in `path`, by rename. Never raises: a rank must end as it would without us.

    Args:
        callers: where it was raised, of one that holds no frames; as for `write_left`.

    Not for a KeyboardInterrupt: imports would make the interpreter forget to end by SIGINT, and that signal says all.
    """
    if isinstance(error, KeyboardInterrupt):
        return
    limit = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(max(limit, _RECURSION_LIMIT))
        import json  # noqa: PLC0415 - only a rank that fails pays for it

        described = describe(error)
        described["traceback"] = _render_callers(callers) + str(described["traceback"])
        text = json.dumps(described)
        temporary = f"{path}.{os.getpid()}.tmp"
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except Exception as trouble:  # noqa: BLE001 - of the user's modules and objects; said in the log
        os.write(2, f"gangline: could not describe the error in {path}: {trouble!r}\n".encode("utf-8", "replace"))
    finally:
        sys.setrecursionlimit(limit)


def write_left(path: str, status: object, callers: "Sequence[tuple[str, int, str]]") -> None:
    """Note in `path` that a rank leaves without an exception: `{"time", "code", "traceback"}`. Never raises.

    Args:
        status: what `sys.exit` was given; "": it was not called, and `code` is null.
        callers: file, line and function from which it was called, the innermost first.
    """
    try:
        import json  # noqa: PLC0415 - a rank that ends pays for it, once
        import time  # noqa: PLC0415 - as above

        code = 0 if status is None else int(status) & 0xFF if isinstance(status, int) else None
        left = {"time": time.time(), "code": code, "traceback": _render_callers(callers)}
        with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(json.dumps(left))
    except Exception:  # noqa: BLE001 - of a full disk, or of what the user has replaced; the end of the rank says enough
        return


def _render_callers(callers: "Sequence[tuple[str, int, str]]") -> str:
    """As a traceback reads; "" for none."""
    if not callers:
        return ""
    import linecache  # noqa: PLC0415 - only a rank that fails pays for it

    lines = ["Traceback (most recent call last):"]
    for file, number, function in reversed(callers):
        code = linecache.getline(file, number).strip()
        lines += [f'  File "{file}", line {number}, in {function}', *([f"    {code}"] if code else [])]
    return "\n".join(lines) + "\n"


def describe(error: BaseException) -> "dict[str, Any]":
    """`{"type", "message", "traceback", "causes", "time", "children"}`; the end of a long traceback, as it is printed.

    `children` are processes that this one has started by `multiprocessing` and that ended badly: `pid`, `exit_code`
    (below 0: a signal).
    """
    import time  # noqa: PLC0415 - only a rank that fails pays for it

    return {
        "type": _name_of(type(error)),
        "message": _message_of(error)[:_MESSAGE_CHARS],
        "traceback": _traceback_of(error)[-_TRACEBACK_CHARS:],
        "causes": [
            {"type": _name_of(type(one)), "message": _message_of(one)[:_MESSAGE_CHARS]} for one in _causes_of(error)
        ],
        "time": time.time(),
        "children": _children(wait_s=_DYING_S if _is_of_child(error) else 0.0),
    }


def _is_of_child(error: BaseException) -> bool:
    """Whether it was raised while this process talked to one that it has started."""
    trace = error.__traceback__
    while trace is not None:
        folders, _, name = trace.tb_frame.f_code.co_filename.replace("\\", "/").rpartition("/")
        if name in _TALK and folders.endswith("/multiprocessing"):
            return True
        trace = trace.tb_next
    return False


def _children(*, wait_s: float) -> "list[dict[str, int]]":
    """Processes of `multiprocessing` that ended badly.

    Args:
        wait_s: how long to wait for the end of one, if none has ended so.
    """
    import time  # noqa: PLC0415 - only a rank that fails pays for it

    known = getattr(sys.modules.get("multiprocessing.process"), "_dangling", ())
    last = time.monotonic() + wait_s
    try:
        while True:
            own = [one for one in list(known) if one._parent_pid == os.getpid() and one._popen is not None]  # noqa: SLF001 - said nowhere else
            ended = [{"pid": one.pid, "exit_code": one.exitcode} for one in own if one.exitcode]
            if ended or not own or time.monotonic() >= last:
                return ended
            time.sleep(0.01)
    except Exception:  # noqa: BLE001 - of another release of Python; the exception is worth more than this
        return []


def _causes_of(error: BaseException) -> "list[BaseException]":
    """What an exception came from or holds (`raise ... from`, exception groups), nearest first."""
    found: list[BaseException] = []
    waiting = [error]
    while waiting and len(found) < _MOST_CAUSES:
        one = waiting.pop(0)
        held = list(getattr(one, "exceptions", ())) if hasattr(type(one), "derive") else []
        origin = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
        for each in [*held, origin]:
            if isinstance(each, BaseException) and not any(each is seen for seen in (*found, error)):
                found.append(each)
                waiting.append(each)
    return found[:_MOST_CAUSES]


def _name_of(kind: "type[BaseException]") -> str:
    module = kind.__module__
    return kind.__qualname__ if module in {"builtins", "__main__"} else f"{module}.{kind.__qualname__}"


def _message_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as trouble:  # noqa: BLE001 - the user's own __str__; what it raised is what is reported
        return f"<its message cannot be shown: {type(trouble).__name__}>"


def _traceback_of(error: BaseException) -> str:
    import traceback  # noqa: PLC0415 - only a rank that fails pays for it

    try:
        parts = traceback.format_exception(type(error), error, error.__traceback__, limit=-_MOST_FRAMES)
        # A long message must not leave the frames out.
        return "".join(part if len(part) <= _MESSAGE_CHARS else f"{part[:_MESSAGE_CHARS]}…\n" for part in parts)
    except Exception as trouble:  # noqa: BLE001 - the user's own __str__ or __repr__, as above
        return f"<its traceback cannot be shown: {type(trouble).__name__}>"
