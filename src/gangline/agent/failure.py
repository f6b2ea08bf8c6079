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
    """`{"type", "message", "traceback", "time"}`; the end of a long traceback, as the interpreter prints it."""
    import time  # noqa: PLC0415 - only a rank that fails pays for it

    return {
        "type": _name_of(type(error)),
        "message": _message_of(error)[:_MESSAGE_CHARS],
        "traceback": _traceback_of(error)[-_TRACEBACK_CHARS:],
        "time": time.time(),
    }


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
