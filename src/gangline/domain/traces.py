"""Tracebacks as text: an exception found at the end of a log or inside of a message, and the user's part of it.

Pure; standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

__all__ = ["after_trace", "find_error", "find_place", "fold_trace"]

_HEADER = "Traceback (most recent call last):"
_PREFIX = re.compile(r"^\[rank\d+\]:? ?|^[^\S\n]+[|+] ?-*\+?-* ?", re.MULTILINE)
"""What PyTorch puts before each line, and how exception groups are drawn. Never over several lines: see `_line_at`."""
_CHAINED = re.compile(r"The above exception was the direct cause|During handling of the above exception")
_ERROR = re.compile(r"^([A-Za-z_][\w.]*(?:\.<locals>\.\w+)?)(?:: ?(.*))?$")
_TERMINATE = re.compile(
    r"terminate called after throwing an instance of '([^'\n]+)'[^\S\n]*(?:\n\s*what\(\):\s*(.*(?:\n.+){0,4}))?"
)
_NOT_SAID = re.compile(r"terminate called after|\[?[WEIF]\d{3,4} ")
"""How lines begin that are no part of the message above them: of the C++ runtime, of the logs of torch."""
_MOST_MESSAGE_LINES = 5
_MOST_AFTER = 30
"""Lines that may follow the traceback at the end of a log: of a shell, of other threads. More, and it was got over."""
_LEFTOVER = re.compile(
    r"\s|Exception ignored |make(\[\d+\])?: \*\*\*|\[?\w*\]?:?\[[WEIF]\d{3}|\S+:\d+: \w*Warning: "
    r"|(?:srun|slurmstepd|mpirun)\b"
)
"""How lines begin that may follow a traceback although nobody got over it: of an interpreter that ends, of wrappers."""
_FRAME = re.compile(r'^\s+File "([^"]*)", line (\d+)')
_FOLDERS = re.compile(r".*[/\\]")
_FOREIGN = re.compile(
    r"[/\\](?:site|dist)-packages[/\\](\w+)|[/\\]lib[/\\]python\d[\d.]*[/\\](?!site-|dist-)(\w+)|^<frozen ([\w.]+)"
)


def find_error(text: str, *, only_thread: bool = False) -> dict[str, Any] | None:
    """The exception whose traceback stands at the end of a text: `{"type", "message", "traceback", "causes"}`.

    Args:
        text: the end of a log, or the message of an exception that carries the traceback of another process.
        only_thread: take only one that ended a thread.
    """
    plain = _PREFIX.sub("", text.replace("\r\n", "\n"))
    blocks = list(_blocks(plain))
    died = _find_terminate(plain, after=blocks[-1][1] if blocks else 0)
    if died is not None and not only_thread:
        return died
    if not blocks:
        return None
    start, end, error = blocks[-1]
    if plain[end:].count("\n") > _MOST_AFTER or (
        only_thread and "Exception in thread" not in _line_before(plain, start)
    ):
        return None
    first, causes = start, []
    for earlier, later in zip(blocks[-2::-1], blocks[:0:-1], strict=False):
        if not _CHAINED.search(plain[earlier[1] : later[0]]):
            break
        first = earlier[0]
        causes.append({"type": earlier[2][0], "message": earlier[2][1]})
    return {"type": error[0], "message": error[1], "traceback": plain[first:end].rstrip() + "\n", "causes": causes}


def after_trace(text: str) -> str | None:
    """What a program went on to print after the last traceback in its log.

    A second line of a message cannot be told from output, unless it is indented.

    Returns:
        "" where the traceback is the end of the log; None where there is no traceback.
    """
    plain = _PREFIX.sub("", text.replace("\r\n", "\n"))
    last = None
    for last in _blocks(plain):  # noqa: B007 - the last one
        pass
    if last is None:
        return None
    start = plain.find("\n" + last[2][0], last[0])
    lines = plain[start + 1 :].split("\n")[1:]
    went_on = [line for line in lines if line and not _LEFTOVER.match(line)]
    return "\n".join(lines) if went_on else ""


def find_place(text: str) -> str:
    """`train.py:41`: the innermost frame of a traceback that is the user's own; "" where there is none."""
    for line in reversed(text.splitlines()):
        frame = _FRAME.match(line)
        if frame is not None and _owner(line) is None:
            return f"{_FOLDERS.sub('', frame[1])}:{frame[2]}"
    return ""


def fold_trace(text: str) -> list[str]:
    """The lines of a traceback with the frames of libraries folded; all of it where nothing else is left."""
    lines: list[str] = []
    folded: list[str] = []
    kept = 0
    for frame in _frames(text.rstrip().splitlines()):
        owner = _owner(frame[0])
        if owner is None:
            lines += _render_folded(folded)
            folded = []
            lines += frame
            kept += _FRAME.match(frame[0]) is not None
        else:
            folded.append(owner)
    lines += _render_folded(folded)
    return lines if kept else text.rstrip().splitlines()


def _blocks(text: str) -> Iterator[tuple[int, int, tuple[str, str]]]:
    """Where each traceback begins and ends, and its type and message."""
    for header in re.finditer(re.escape(_HEADER) + r"[^\n]*\n", text):
        position = header.end()
        while (line := _line_at(text, position)) is not None and (line[:1].isspace() or line.startswith("File ")):
            position += len(line) + 1
        found = _ERROR.match((line or "").rstrip())
        if found is None or position == header.end():
            continue
        end = position + len(line or "")
        message = [found[2] or ""]
        while (more := _line_at(text, end + 1)) and not more.isspace() and _HEADER not in more:
            if len(message) >= _MOST_MESSAGE_LINES or _CHAINED.search(more) or _NOT_SAID.match(more):
                break
            message.append(more)
            end += len(more) + 1
        yield header.start(), end, (found[1], "\n".join(message).strip())


def _line_at(text: str, position: int) -> str | None:
    """One line, by a look at no more than that line: a log may be thousands of empty ones."""
    if position >= len(text):
        return None
    end = text.find("\n", position)
    return text[position:] if end < 0 else text[position:end]


def _line_before(text: str, position: int) -> str:
    return text[:position].rstrip("\n").rpartition("\n")[2]


def _find_terminate(text: str, *, after: int) -> dict[str, Any] | None:
    """What the C++ runtime says of an exception that nobody caught."""
    found = _TERMINATE.search(text, after)
    if found is None:
        return None
    message = (found[2] or "").strip()
    return {"type": found[1], "message": message, "traceback": found[0].rstrip() + "\n", "causes": []}


def _frames(lines: list[str]) -> Iterator[list[str]]:
    """Each frame with its source lines; every other line by itself."""
    frame: list[str] = []
    for line in lines:
        if _FRAME.match(line):
            if frame:
                yield frame
            frame = [line]
        elif frame and line.startswith("    ") and not line.startswith("      File"):
            frame.append(line)
        else:
            if frame:
                yield frame
            frame = []
            yield [line]
    if frame:
        yield frame


def _owner(line: str) -> str | None:
    """The library that a frame is of; None: the user's own code, or no frame."""
    frame = _FRAME.match(line)
    found = _FOREIGN.search(frame[1]) if frame else None
    return next(filter(None, found.groups()), None) if found else None


def _render_folded(owners: list[str]) -> list[str]:
    if not owners:
        return []
    names = ", ".join(dict.fromkeys(owners))
    return [f"  ({len(owners)} {'frame' if len(owners) == 1 else 'frames'} of {names})"]
