"""The exception that ends a rank, as JSON next to its log.

Read by two readers: forked ranks import it, and `inject.py` copies its text next to the injected `sitecustomize`. It therefore
imports nothing at its top that a fresh interpreter has not loaded already, and nothing of Gangline.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

__all__ = ["describe", "is_telling", "write_failure"]

_TRACEBACK_CHARS = 16_000
_MESSAGE_CHARS = 4_000
_MOST_FRAMES = 200


def write_failure(path: str, error: BaseException, trace: TracebackType | None) -> None:
    """Describe the exception in `path`, by rename. Never raises: a rank must end as it would without us."""
    import json  # noqa: PLC0415 - only a rank that fails pays for it

    try:
        text = json.dumps(describe(error, trace))
        temporary = f"{path}.{os.getpid()}.tmp"
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except (OSError, ValueError, RecursionError, MemoryError) as trouble:
        os.write(2, f"gangline: could not describe the error in {path}: {trouble!r}\n".encode("utf-8", "replace"))


def describe(error: BaseException, trace: TracebackType | None) -> dict[str, Any]:
    """`{"type", "message", "traceback", "time"}`; the end of a long traceback, as the interpreter prints it."""
    import time  # noqa: PLC0415 - only a rank that fails pays for it

    return {
        "type": _name_of(type(error)),
        "message": _message_of(error)[:_MESSAGE_CHARS],
        "traceback": _traceback_of(error, trace)[-_TRACEBACK_CHARS:],
        "time": time.time(),
    }


def is_telling(error: BaseException) -> bool:
    """Whether there is something to describe: `sys.exit(3)` says all by its number, `sys.exit("no data")` does not."""
    return not isinstance(error, SystemExit) or not (error.code is None or isinstance(error.code, int))


def _name_of(kind: type[BaseException]) -> str:
    module = kind.__module__
    return kind.__qualname__ if module in {"builtins", "__main__"} else f"{module}.{kind.__qualname__}"


def _message_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as trouble:  # noqa: BLE001 - the user's own __str__; what it raised is what is reported
        return f"<its message cannot be shown: {type(trouble).__name__}>"


def _traceback_of(error: BaseException, trace: TracebackType | None) -> str:
    import traceback  # noqa: PLC0415 - only a rank that fails pays for it

    try:
        return "".join(traceback.format_exception(type(error), error, trace, limit=-_MOST_FRAMES))
    except Exception as trouble:  # noqa: BLE001 - the user's own __str__ or __repr__, as above
        return f"<its traceback cannot be shown: {type(trouble).__name__}>"
