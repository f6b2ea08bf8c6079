"""What the ranks and the leader of a gang say, read from its run directory as it grows. Standard library only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gangline.rundir.journal import JournalReader
from gangline.rundir.layout import RunDir
from gangline.server.logs import GangLogFollower

__all__ = ["Told", "render_event"]


class Told:
    """All that is new since the last look, over the attempts of one launch.

    Args:
        ranks: whose logs are read.
        node: whose journal is read: the leader's.
    """

    def __init__(self, run: RunDir, *, first_attempt: int, ranks: Sequence[int], node: int = 0) -> None:
        self._run = run
        self._first = first_attempt
        self._node = node
        self._journals: dict[int, JournalReader] = {}
        self._logs = GangLogFollower(run_dir=run, ranks=ranks, attempt=first_attempt)

    def read(self, *, is_over: bool) -> tuple[list[tuple[int | None, str]], bool]:
        """Pieces of logs, by rank, and sentences (rank None).

        Args:
            is_over: nothing more will be written; has to be known before the call.
        Returns:
            What there is, at most about 1 MiB, and whether that is all.
        """
        events = list(self._events())
        pieces, is_all = self._logs.poll(run_over=is_over)
        return [*((piece["rank"], piece["text"]) for piece in pieces if piece["text"]), *events], is_all

    def _events(self) -> Iterator[tuple[None, str]]:
        for attempt in self._run.attempts():
            if attempt.number < self._first:
                continue
            journal = self._journals.setdefault(attempt.number, JournalReader(attempt.events(self._node)))
            for event in journal.read_all():
                if text := render_event(event, attempt.number):
                    yield None, text


def render_event(event: Mapping[str, Any], attempt: int) -> str:
    """An entry of a leader's journal as a sentence; "" for what is of no interest to people."""
    match event.get("kind"):
        case "attempt_running":
            return f"Attempt {attempt} runs."
        case "first_failure":
            return str(event.get("message") or "")
        case "attempt_ended":
            said = (f"Attempt {attempt} {event.get('outcome')}.", event.get("restart_message"))
            return " ".join(str(part) for part in said if part)
        case "dashboard" | "warning" | "straggler" | "hang_suspected" | "hang":
            return str(event.get("text") or "")
    return ""
