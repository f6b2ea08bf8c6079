"""What lies beside a launch: what the server has tried (`ray.json`), what the driver says (`ray-state.json`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gangline.rundir.files import Unreadable, read_json, write_json
from gangline.rundir.layout import LaunchDir

__all__ = ["DriverState", "Note", "read_note", "read_state", "write_note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A call of `submit`, noted before the job is handed over."""

    key: str
    session: str
    """Of the cluster that was asked."""
    taken: bool = False
    """Ray has said that it has the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverState:
    """What the driver of a job has said last."""

    waits: str | None = None
    """Why its placement group does not come about; None: it has come about, or nothing is said yet."""
    started: bool = False
    gone: tuple[int, ...] = ()
    """Nodes whose agent is gone while others live."""


def read_note(folder: LaunchDir) -> Note | None:
    """None: nothing was tried."""
    raw: dict[str, Any] | None = read_json(_note(folder))
    return None if raw is None else Note(key=raw["key"], session=raw["session"], taken=raw["taken"])


def write_note(folder: LaunchDir, note: Note) -> None:
    """Durable: an agent may begin right after it."""
    raw = {"version": 1, "key": note.key, "session": note.session, "taken": note.taken}
    write_json(_note(folder), raw, durable=True)


def read_state(folder: LaunchDir) -> DriverState:
    """What the driver has said; nothing, where it has said nothing that can be read."""
    try:
        raw: dict[str, Any] = read_json(folder.path / "ray-state.json") or {}
    except (Unreadable, OSError):
        raw = {}
    if raw.get("state") == "waiting":
        return DriverState(waits=str(raw.get("why", "")))
    return DriverState(started=raw.get("state") == "started", gone=tuple(raw.get("gone", ())))


def _note(folder: LaunchDir) -> Path:
    return folder.path / "ray.json"
