"""The exception that ended a rank, as JSON next to its log.

`inject.py` copies this text next to the injected `sitecustomize`, which loads it when a rank fails. It therefore
imports nothing of Gangline, and nothing at its top that a fresh interpreter has not loaded.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["describe", "write_failure"]

_TRACEBACK_CHARS = 16_000
_MESSAGE_CHARS = 4_000
_MOST_FRAMES = 200
_MOST_CAUSES = 8
_RECURSION_LIMIT = 1000
"""What describing an error takes, and more than a script may have left to itself."""


def write_failure(path: str, error: BaseException) -> None:
    """Describe the exception in `path`, by rename. Never raises: a rank must end as it would without us.

    Not for a KeyboardInterrupt: imports would make the interpreter forget to end by SIGINT, and that signal says all.
    """
    if isinstance(error, KeyboardInterrupt):
        return
    limit = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(max(limit, _RECURSION_LIMIT))
        import json  # noqa: PLC0415 - only a rank that fails pays for it

        text = json.dumps(describe(error))
        temporary = f"{path}.{os.getpid()}.tmp"
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except Exception as trouble:  # noqa: BLE001 - of the user's modules and objects; said in the log
        os.write(2, f"gangline: could not describe the error in {path}: {trouble!r}\n".encode("utf-8", "replace"))
    finally:
        sys.setrecursionlimit(limit)


def describe(error: BaseException) -> "dict[str, Any]":
    """`{"type", "message", "traceback", "causes", "time"}`; the end of a long traceback, as it is printed."""
    import time  # noqa: PLC0415 - only a rank that fails pays for it

    return {
        "type": _name_of(type(error)),
        "message": _message_of(error)[:_MESSAGE_CHARS],
        "traceback": _traceback_of(error)[-_TRACEBACK_CHARS:],
        "causes": [
            {"type": _name_of(type(one)), "message": _message_of(one)[:_MESSAGE_CHARS]} for one in _causes_of(error)
        ],
        "time": time.time(),
    }


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
        return "".join(traceback.format_exception(type(error), error, error.__traceback__, limit=-_MOST_FRAMES))
    except Exception as trouble:  # noqa: BLE001 - the user's own __str__ or __repr__, as above
        return f"<its traceback cannot be shown: {type(trouble).__name__}>"
