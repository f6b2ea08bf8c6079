"""What a launch has left in its files, as far as they are in the mirror."""

from __future__ import annotations

from pathlib import Path

from gangline.backends.slurm.endings import ExitMark
from gangline.backends.slurm.evidence import Footprint
from gangline.backends.slurm.jobwords import JobWords, parse_words
from gangline.rundir.files import Unreadable, read_json, write_json
from gangline.rundir.layout import LaunchDir, RunDir

__all__ = ["CANCEL_NOTE", "has_mark", "note_cancel", "read_footprint"]

CANCEL_NOTE = "cancel.json"
"""Written here before Slurm is asked to end a job: what Slurm then says of it was our own doing."""
_JOB_LOG = "job.log"
_LONGEST_MARK_BYTES = 200
_WORDS_BYTES = 16_384


def note_cancel(launch: LaunchDir, now: float) -> None:
    """Remember that Gangline itself ends the job. Once is enough; a disk that is full stops nobody."""
    path = launch.path / CANCEL_NOTE
    try:
        if not path.exists():
            write_json(path, {"version": 1, "time": now})
    except OSError:
        return


def has_mark(launch: LaunchDir) -> bool:
    """Whether the batch script says that it has ended; cheap."""
    return launch.exit_mark.exists()


def read_footprint(run: RunDir, number: int) -> Footprint:
    """Everything that the files of one launch say. What cannot be read is not there yet."""
    launch = run.launch(number)
    return Footprint(
        mark=_read_mark(launch),
        last_word=_last_word(run, number),
        alive_sign=_sign(launch),
        words=_words(launch),
        has_log=_has_content(launch),
        is_cancelled=(launch.path / CANCEL_NOTE).exists(),
    )


def _read_mark(launch: LaunchDir) -> ExitMark | None:
    try:
        with launch.exit_mark.open("rb") as file:
            words = file.read(_LONGEST_MARK_BYTES).split()
        return ExitMark(exit_code=int(words[0]), restart=int(words[1]), time=float(words[2]))
    except (OSError, ValueError, IndexError):
        return None


def _last_word(run: RunDir, number: int) -> str:
    """What the newest attempt's result says comes next, if the attempt is of this launch."""
    attempts = run.attempts()
    if not attempts:
        return ""
    try:
        result = read_json(attempts[-1].result)
    except (Unreadable, OSError):
        return ""
    if result is None or result.get("launch") != number:
        return ""
    return str(result.get("next") or "")


def _words(launch: LaunchDir) -> JobWords:
    try:
        with (launch.path / _JOB_LOG).open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _WORDS_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return JobWords()
    return parse_words(text)


def _sign(launch: LaunchDir) -> int | None:
    try:
        return launch.alive.stat().st_mtime_ns
    except OSError:
        return None


def _has_content(launch: LaunchDir) -> bool:
    return any(_size(path) > 0 for path in (launch.path / _JOB_LOG, launch.log(0)))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
