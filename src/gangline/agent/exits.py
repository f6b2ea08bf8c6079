"""The end of one rank, described: for the journal of its node, and for the leader. Standard library only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gangline.agent.localattempt import LocalAttempt, LocalRank
from gangline.agent.memory import Memory, count_oom_kills, read_memory
from gangline.agent.site import Journal, Site
from gangline.agent.starter import RankExit
from gangline.rundir.layout import AttemptDir
from gangline.rundir.space import probe_folder

if TYPE_CHECKING:
    from gangline.agent.lastwords import LastStep

__all__ = ["ExitReports"]

_READ_BYTES = 32_768
"""Of a failed rank's log, to find an exception in."""
_TAIL_CHARS = 4096
"""Of it, what is kept with the result."""


class ExitReports:
    """Tells of ranks that have ended on one node.

    Args:
        report: takes `{"say": "exited", ...}`.
        on_full: takes what is said of a disk that has no room left.
    """

    def __init__(
        self, site: Site, journal: Journal, *, report: Callable[[dict[str, Any]], None], on_full: Callable[[str], None]
    ) -> None:
        self._site = site
        self._journal = journal
        self._report = report
        self._on_full = on_full

    def tell(self, attempt: LocalAttempt, local: LocalRank, gone: RankExit, *, by: str) -> None:
        """A rank has ended.

        Args:
            by: `self`, or `platform`: it was told to.
        """
        from gangline.agent.lastwords import read_last_step, read_left, read_tail  # noqa: PLC0415 - no start needs it

        failed, folder = gone.exit_code != 0, attempt.folder
        log = read_tail(folder.log(local.rank), _READ_BYTES) if failed else ""
        error = self._read_error(folder, local.rank, log=log, gone=gone) if failed else None
        left = read_left(folder.left(local.rank))
        if error is None and left is not None and failed and left["code"] == (gone.exit_code or left["code"]):
            error = left["error"]
        last = read_last_step(self._site.run.metrics(local.rank), folder.number)
        facts = {
            "rank": local.rank,
            "pid": local.pid or None,
            "exit_code": gone.exit_code,
            "signal": gone.signal,
            "ended_by": by,
            "peak_rss_bytes": gone.peak_rss_bytes,
            "error": error,
            "step": last.step,
            "phase": last.phase,
            "place": _find_place(attempt, local.rank, error) if failed else None,
        }
        self._journal.write("rank_exited", **facts)
        if gone.exit_code and (error is None or not error["type"]):
            self._ask_for_room()
        extra = {
            "time": gone.time,
            "started": local.started,
            "log_tail": log.rstrip()[-_TAIL_CHARS:],
            "printed": self._read_printed(attempt, local.rank, last) if failed and by == "platform" else None,
            "total": last.total,
            "left": left,
            "oom_kills": _new_oom_kills(attempt),
            "memory": _describe_memory(read_memory()) if failed else None,
        }
        self._report({"say": "exited", "attempt": folder.number, **facts, **extra})

    def _read_error(self, folder: AttemptDir, rank: int, *, log: str, gone: RankExit) -> dict[str, Any] | None:
        from gangline.agent.lastwords import read_error  # noqa: PLC0415 - as above

        def warn(text: str) -> None:
            self._journal.write("warning", text=text, rank=rank)

        return read_error(folder, rank, log=log, signal=gone.signal, exit_code=gone.exit_code, warn=warn)

    def _read_printed(self, attempt: LocalAttempt, rank: int, last: LastStep) -> dict[str, Any] | None:
        """The exception that stood at the end of the log when the platform ended the rank."""
        from gangline.agent.lastwords import decide_printed, read_tail  # noqa: PLC0415 - as above

        if rank not in attempt.log_ends:
            return None
        size, written = attempt.log_ends[rank]
        log = read_tail(attempt.folder.log(rank), _READ_BYTES, end=size)
        return decide_printed(log, written=written, reported=last.time)

    def _ask_for_room(self) -> None:
        """A rank that failed without a word may have had no room for one, although the journal still had."""
        fault = probe_folder(self._site.run.path)
        if fault:
            self._on_full(f"{fault}.")


def _find_place(attempt: LocalAttempt, rank: int, error: dict[str, Any] | None) -> str | None:
    """Where it raised; else where it was when it was told to end, which of one that had raised is only its way out."""
    from gangline.agent.watch.places import decide_raised  # noqa: PLC0415 - as above

    raised = decide_raised(str(error["traceback"] or "")) if error is not None else ""
    return raised or (attempt.last_look.place(rank) if attempt.last_look is not None else None)


def _new_oom_kills(attempt: LocalAttempt) -> int:
    now = count_oom_kills()
    return 0 if now is None or attempt.oom_kills is None else now - attempt.oom_kills


def _describe_memory(memory: Memory | None) -> dict[str, int] | None:
    return None if memory is None else {"limit_bytes": memory.limit_bytes, "used_bytes": memory.used_bytes}
