"""How a gang that no server looks after has ended, read from its run directory. Standard library only."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gangline.rundir.checkpoints import newest_complete
from gangline.rundir.files import Unreadable, read_json
from gangline.rundir.layout import RunDir

__all__ = ["Ended", "read_end"]

_SAID_CHARS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How the newest launch of a run directory has ended."""

    phase: str
    """`succeeded`, `failed` or `stopped`."""
    reason: str | None
    message: str
    attempts: list[dict[str, Any]] = field(default_factory=list)
    """`result.json` of each attempt."""
    checkpoint: Path | None = None
    """The newest complete one."""


def read_end(folder: Path, *, first_attempt: int = 0) -> Ended:
    """Read it, once nothing of the gang is left.

    Args:
        first_attempt: attempts before it are of no interest.
    """
    run = RunDir(folder)
    attempts = [one for one in run.attempts() if one.number >= first_attempt]
    results = [result for one in attempts if (result := _read(one.result)) is not None]
    newest = _newest(run)
    if len(results) < max(1, len(attempts)):
        message = f"The agent ended and left no word on how the gang had ended.{_said(run)}"
        return Ended(phase="failed", reason="platform", message=message, attempts=results, checkpoint=newest)
    last = results[-1]
    return Ended(
        phase=last["outcome"] if last["outcome"] in {"succeeded", "stopped"} else "failed",
        reason=last.get("reason"),
        message=last.get("message") or "",
        attempts=results,
        checkpoint=newest,
    )


def _newest(run: RunDir) -> Path | None:
    """In the folder that the newest launch was told."""
    launches = run.launches()
    told = (_read(launches[-1].spec) or {}) if launches else {}
    with suppress(OSError):
        found, _ = newest_complete(Path((told.get("checkpoint") or {}).get("path") or run.checkpoints))
        return None if found is None else found.path
    return None


def _said(run: RunDir) -> str:
    """The end of the agent's log."""
    launches = run.launches()
    with suppress(OSError, IndexError):
        text = launches[-1].log(0).read_text(encoding="utf-8", errors="replace").strip()
        return f" It said: {text[-_SAID_CHARS:]}" if text else ""
    return ""


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return read_json(path)
    except (OSError, Unreadable):
        return None
