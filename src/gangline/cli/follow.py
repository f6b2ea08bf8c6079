"""Following a run: its output and its history on the terminal until it is over, then its own exit code."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from gangline.cli.describe import describe_phase, exit_code_of, explain
from gangline.cli.failure import EXIT_INTERRUPTED
from gangline.cli.logtext import LogPrinter
from gangline.cli.prose import fold_message
from gangline.cli.terminal import Terminal, say
from gangline.cli.text import render_clock
from gangline.domain.phase import Phase

if TYPE_CHECKING:
    from gangline.client.client import Client
    from gangline.wire.views import EventView, LogChunk, RunSummary

__all__ = ["Following", "Story", "follow_run", "label_of", "make_printer", "say_detached", "say_end"]

_LINE_CHARS = 8000
"""Longer lines are cut on a terminal; a pipe gets all of them."""
_RANK_COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_yellow")


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """What to follow, and how it is shown."""

    ranks: Sequence[int] | None = None
    """None: all."""
    attempt: int | None = None
    """None: from the newest on."""
    tail: int | None = None
    """Begin at the last that many lines."""
    since: float | None = None
    """Begin at what was written from this time on."""
    after: int = -1
    """`seq` of the last event that has been told already."""
    raw: bool = False
    as_json: bool = False
    """Print the items of the stream, one JSON object a line."""


@dataclass(slots=True)
class Story:
    """What people have been told of a run's history, so that nothing is said twice.

    Why an attempt ended is why the run moves to its next phase: two events, one sentence.
    """

    _said: str = ""
    _end: str = ""
    """Of the newest attempt that has ended. The run's move may come after the first events of the next one."""

    def is_news(self, event: EventView) -> bool:
        """Whether an event says anything that the one before it did not; it counts as said from then on."""
        message = event["message"]
        if not message or message in self._said or _is_told_otherwise(event):
            return False
        if event["kind"] == "phase" and message in self._end:
            return False
        self._said = message
        if event["kind"] == "attempt_ended":
            self._end = message
        return True


def follow_run(client: Client, run_id: str, wanted: Following, *, detachable: bool = True) -> int:
    """Print until the run is over.

    Args:
        detachable: Ctrl-C leaves the run alone, and says so; False: the caller ends it.
    Returns:
        The run's outcome as exit code, or 130 when the person detached with Ctrl-C; the run goes on then.
    """
    several = wanted.ranks is None or len(wanted.ranks) != 1
    printer = make_printer(Terminal.from_stream(), labelled=several, raw=wanted.raw)
    ended: RunSummary | None = None
    story = Story()
    ranks, attempt, tail, since = wanted.ranks, wanted.attempt, wanted.tail, wanted.since
    stream = client.follow(run_id, ranks=ranks, attempt=attempt, tail=tail, since=since, after=wanted.after)
    try:
        for item in stream:
            ended = item.get("end", ended)
            if wanted.as_json:
                _write(json.dumps(item) + "\n")
            else:
                _show(item, printer, story)
    except KeyboardInterrupt:
        printer.break_line()
        if detachable:
            say_detached(run_id)
        return EXIT_INTERRUPTED
    printer.finish()
    ended = ended or client.run(run_id)
    if not wanted.as_json:
        phase = Terminal.from_stream(sys.stderr).phase(ended["phase"], describe_phase(ended))
        say(f"{ended['id']} {phase}; gangline show {ended['id']} has the details.", err=True)
    return exit_code_of(ended)


def make_printer(terminal: Terminal, *, labelled: bool, raw: bool = False, live: bool = True) -> LogPrinter:
    """A printer to stdout; with labels each line begins with its rank, in a colour that stays the rank's own."""

    def label(rank: int) -> str:
        return label_of(terminal, rank)

    longest = _LINE_CHARS if terminal.live and not raw else None
    return LogPrinter(_write, label if labelled else None, raw=raw, line_chars=longest, live=live)


def label_of(terminal: Terminal, rank: int, before: str = "") -> str:
    """What a line of a rank begins with."""
    return terminal.paint(f"{before}rank {rank} | ", _RANK_COLOURS[rank % len(_RANK_COLOURS)])


def say_detached(run_id: str) -> None:
    """What Ctrl-C did, and did not do."""
    say(
        f"\ndetached; the run goes on. gangline stop {run_id} ends it, gangline watch {run_id} shows it again.",
        err=True,
    )


def _show(item: Mapping[str, Any], printer: LogPrinter, story: Story) -> None:
    if "text" in item:
        printer.feed(cast("LogChunk", item))
    elif "event" in item and story.is_news(item["event"]):
        if sys.stdout.isatty():  # elsewhere stdout is the ranks' alone, to the byte
            printer.break_line()
        _say_event(item["event"])
    elif "waits" in item:
        _tell(time.time(), item["waits"])


def _say_event(event: EventView) -> None:
    _tell(event["time"], event["message"])


def _tell(when: float, message: str) -> None:
    terminal = Terminal.from_stream(sys.stderr)
    say(terminal.paint(f"gangline {render_clock(when)} {fold_message(message)}", dim=True), err=True)


def _is_told_otherwise(event: EventView) -> bool:
    """That all ranks have started is told by the phase; how the last attempt ended, by the attempt."""
    reached = event["data"].get("new")
    return event["kind"] == "attempt_running" or (reached == Phase.SUCCEEDED.value and event["kind"] == "phase")


def say_end(run: RunSummary, terminal: Terminal) -> str:
    """How a run ended and why, in one line."""
    phase = terminal.phase(run["phase"], describe_phase(run))
    return f"{run['id']} {phase}: {explain(run, terminal.now)}"


def _write(text: str) -> None:
    if text:
        sys.stdout.write(text)
        sys.stdout.flush()
