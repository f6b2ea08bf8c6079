"""Stack dumps as frames: the text of `faulthandler`, the JSON of py-spy. Pure; standard library only."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = [
    "Frame",
    "Thread",
    "is_library",
    "is_ours",
    "main_thread",
    "parse_faulthandler",
    "parse_pyspy",
    "parse_traceback",
    "render_threads",
    "thread_from_dict",
    "with_code",
]

_HEAD = re.compile(r"(Current thread|Thread) (0x[0-9a-f]+)(?: \[(.*)\])? \(most recent call first\):")
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
_TRACED = re.compile(r'  File "(.*)", line (\d+), in (.*)')
_HEADER = "Traceback (most recent call last):"
_LIBRARY = re.compile(
    r"[/\\](site-packages|dist-packages|lib/python\d)|^<frozen|\.pyz[/\\]|[/\\]gangline[/\\]training[/\\]"
)
_OURS = re.compile(r"[/\\]injected[/\\]\w+\.py$")
"""What Gangline itself runs in a rank, as where it describes an exception."""
_MOST_THREADS = 40
_MOST_FRAMES = 60
_LONGEST_CODE = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One call that has not returned."""

    file: str
    line: int
    """0: not known (a native frame)."""
    function: str
    code: str = ""
    """The source line, where it is the user's own."""

    def to_dict(self) -> dict[str, Any]:
        return {"file": self.file, "line": self.line, "function": self.function, "code": self.code}


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """One thread, its innermost call first."""

    name: str
    frames: tuple[Frame, ...] = ()

    @property
    def is_main(self) -> bool:
        """Begins with a script's top level rather than with what `threading` starts threads by."""
        return bool(self.frames) and not (
            self.frames[-1].file.endswith("threading.py") or self.frames[-1].function == "_bootstrap"
        )

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "frames": [frame.to_dict() for frame in self.frames]}


def parse_faulthandler(text: str) -> list[Thread]:
    """Threads of a dump, as far as it was written; lines that are none of it are left out."""
    threads: list[Thread] = []
    name = ""
    frames: list[Frame] = []
    for line in text.splitlines():
        if head := _HEAD.fullmatch(line.rstrip()):
            if name:
                threads.append(Thread(name=name, frames=tuple(frames)))
            name, frames = head[3] or head[2], []
        elif name and (found := _FRAME.fullmatch(line.rstrip())) and len(frames) < _MOST_FRAMES:
            frames.append(Frame(file=found[1], line=int(found[2]), function=found[3]))
    if name:
        threads.append(Thread(name=name, frames=tuple(frames)))
    return threads[-_MOST_THREADS:]  # the main thread is the last


def parse_traceback(text: str) -> Thread | None:
    """Where an exception was raised, from its traceback; None where it has no frames.

    Of several that belong together, the last one counts: it is of the exception that got out.
    """
    frames: list[Frame] = []
    lines = text.rpartition(_HEADER)[2].splitlines()
    for line, below in zip(lines, [*lines[1:], ""], strict=False):
        if found := _TRACED.fullmatch(line.rstrip()):
            code = below.strip() if below.startswith("    ") else ""
            frames.append(Frame(file=found[1], line=int(found[2]), function=found[3], code=code[:_LONGEST_CODE]))
    return Thread(name="MainThread", frames=tuple(frames[-_MOST_FRAMES:][::-1])) if frames else None


def parse_pyspy(text: str) -> list[Thread]:
    """Threads in the output of `py-spy dump --json`; [] where it is something else."""
    try:
        listed = json.loads(text)
    except (ValueError, RecursionError):
        return []
    if not isinstance(listed, list):
        return []
    threads = [_pyspy_thread(entry) for entry in listed if isinstance(entry, Mapping)]
    return sorted(threads, key=lambda thread: thread.name == "MainThread")[-_MOST_THREADS:]


def main_thread(threads: Sequence[Thread]) -> Thread | None:
    """The one that runs the script."""
    named = [thread for thread in threads if thread.name == "MainThread"]
    found = named or [thread for thread in threads if thread.is_main] or list(threads)
    return found[-1] if found else None


def is_library(frame: Frame) -> bool:
    """Whether a frame is in code that was installed, rather than in the user's own."""
    return frame.line == 0 or bool(_LIBRARY.search(frame.file))


def is_ours(frame: Frame) -> bool:
    """Whether a frame is what Gangline has put into the rank: it says nothing of where the rank is."""
    return bool(_OURS.search(frame.file))


def with_code(threads: Sequence[Thread], read_line: Callable[[str, int], str]) -> list[Thread]:
    """The threads with the source lines of the user's own frames."""
    return [
        Thread(name=thread.name, frames=tuple(_with_line(frame, read_line) for frame in thread.frames))
        for thread in threads
    ]


def thread_from_dict(raw: Mapping[str, Any]) -> Thread:
    """The reverse of `Thread.to_dict`.

    Raises:
        KeyError, TypeError: it is something else.
    """
    return Thread(name=str(raw["name"]), frames=tuple(Frame(**frame) for frame in raw["frames"]))


def render_threads(threads: Sequence[Thread]) -> str:
    """As a traceback reads: a thread's outermost call first."""
    lines: list[str] = []
    for thread in threads:
        lines.append(f"Thread {thread.name} (most recent call last):")
        for frame in reversed(thread.frames):
            where = f'  File "{frame.file}", line {frame.line}, in {frame.function}'
            lines.append(where if frame.line else f"  {frame.file}, {frame.function}")
            if frame.code:
                lines.append(f"    {frame.code}")
    return "\n".join(lines)


def _pyspy_thread(entry: Mapping[str, Any]) -> Thread:
    frames = [
        Frame(
            file=str(frame.get("filename") or frame.get("module") or ""),
            line=int(frame.get("line") or 0),
            function=str(frame.get("name") or ""),
        )
        for frame in entry.get("frames") or ()
        if isinstance(frame, Mapping)
    ]
    name = entry.get("thread_name") or f"{entry.get('os_thread_id') or entry.get('thread_id')}"
    return Thread(name=str(name), frames=tuple(frames[:_MOST_FRAMES]))


def _with_line(frame: Frame, read_line: Callable[[str, int], str]) -> Frame:
    if is_library(frame):
        return frame
    code = read_line(frame.file, frame.line).strip()[:_LONGEST_CODE]
    return Frame(file=frame.file, line=frame.line, function=frame.function, code=code)
