"""`gangline watch`: one run, live."""

from __future__ import annotations

import json
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from gangline.cli import connection
from gangline.cli.describe import describe_phase, exit_code_of, explain, is_over, num_ranks
from gangline.cli.failure import EXIT_INTERRUPTED
from gangline.cli.follow import Story, say_detached
from gangline.cli.logtext import LineAssembler
from gangline.cli.options import Whole, json_option, run_argument
from gangline.cli.plot import render_sparkline
from gangline.cli.prose import fold_message
from gangline.cli.summary import main_metric, metric_points, render_attempts
from gangline.cli.terminal import Terminal, say
from gangline.cli.text import (
    render_clock,
    render_count,
    render_duration,
    render_metric,
    render_number,
    render_step,
    visible,
)
from gangline.domain.errors import NotFound
from gangline.wire.views import EventView, MetricView, RankView, RunDetail, RunSummary

if TYPE_CHECKING:
    from gangline.client.client import Client

__all__ = ["Rate", "command", "render_change", "render_screen"]

_TICK_S = 1.0
_RATE_WINDOW_S = 60.0
_PLAIN_STEP_S = 10.0
"""Without a live terminal, a line on progress at most this often."""
_LOG_LINES = 10
_LOG_BYTES = 16_384
_MOST_RANKS = 64


@dataclass(slots=True)
class Rate:
    """Steps per second over the last minute, within one attempt."""

    _seen: deque[tuple[float, int]] = field(default_factory=deque)
    _attempt: int | None = None

    def update(self, run: RunDetail, now: float) -> float | None:
        """Take in the newest step; None until two different moments are known."""
        step = run["step"]
        if step is None:
            return None
        if run["attempt"] != self._attempt or (self._seen and step < self._seen[-1][1]):
            self._seen.clear()
            self._attempt = run["attempt"]
        if not self._seen or step != self._seen[-1][1]:
            self._seen.append((now, step))
        while len(self._seen) > 2 and now - self._seen[0][0] > _RATE_WINDOW_S:  # noqa: PLR2004 - two make a rate
            self._seen.popleft()
        (first_time, first_step), (last_time, last_step) = self._seen[0], self._seen[-1]
        return (last_step - first_step) / (last_time - first_time) if last_time > first_time else None


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Everything that one screen shows."""

    run: RunDetail
    metric: MetricView | None = None
    rank: int = 0
    log: Sequence[str] = ()
    rate: float | None = None


@click.command("watch")
@run_argument
@click.option("-r", "--rank", type=Whole(), default=0, help="Show the newest output of this rank.  [default: 0]")
@click.option("--plain", is_flag=True, help="Print changes line by line, as in a pipe.")
@json_option("Print each state of the run as JSON, one object a line; errors are JSON on stderr.")
def command(*, run: str, rank: int, plain: bool, as_json: bool) -> int:
    """Watch a run live.

    Phase, progress, loss, ranks, attempts and newest output on one screen; line by line where the output is no
    terminal. Ends with the run, with its exit code; Ctrl-C ends only the watching.
    """
    client = connection.connect()
    terminal = Terminal.from_stream()
    run_id = client.run(run)["id"]
    try:
        if as_json:
            ended = _watch_json(client, run_id)
        else:
            ended = _watch_live(client, run_id, rank) if terminal.live and not plain else _watch_plain(client, run_id)
    except KeyboardInterrupt:
        say_detached(run_id)
        return EXIT_INTERRUPTED
    return exit_code_of(ended)


def render_screen(view: View, terminal: Terminal) -> list[str]:
    """The live screen as lines that fit the terminal."""
    run = view.run
    phase = terminal.phase(run["phase"], describe_phase(run))
    head = [
        f"{terminal.heading(run['id'])}  {phase}  {render_duration(run['duration_s'])}",
        terminal.clip(explain(run, terminal.now)),
        terminal.clip(_progress_line(view, terminal)),
        terminal.clip(_loss_line(view, terminal)),
    ]
    blocks = [
        [line for line in head if line],
        _render_ranks(run, terminal),
        render_attempts(run["attempts"][-4:], terminal) if len(run["attempts"]) > 1 else [],
        [terminal.clip(_checkpoint_line(run))] if run["checkpoints"] else [],
    ]
    lines = [line for block in blocks if block for line in (*block, "")]
    room = max(1, min(_LOG_LINES, terminal.height - len(lines) - 2))
    tail = [terminal.paint(f"rank {view.rank}", dim=True), *(terminal.clip(visible(line)) for line in view.log[-room:])]
    return lines + (tail if view.log else [])


def render_change(before: RunDetail | None, run: RunDetail, events: Iterable[EventView]) -> list[str]:
    """What is new since `before`, a line for each: events, else a changed phase."""
    lines = [f"{render_clock(event['time'])} {fold_message(event['message'] or event['kind'])}" for event in events]
    if not lines and (before is None or before["phase"] != run["phase"]):
        lines = [f"{render_clock(time.time())} {describe_phase(run)}: {explain(run, time.time())}"]
    return lines


def _watch_json(client: Client, run_id: str) -> RunDetail:
    seen: RunSummary | None = None
    while True:
        run = client.wait(run_id, timeout_s=_TICK_S, version=seen["version"] if seen else -1)
        if run != seen:
            say(json.dumps(run))
        if is_over(run):
            return client.run(run_id)
        seen = run


def _watch_plain(client: Client, run_id: str) -> RunDetail:
    before: RunDetail | None = None
    story = Story()
    rate, last_step_time, shown_step = Rate(), -math.inf, None
    seen = -1
    while True:
        run = client.run(run_id)
        events = [event for event in run["events"] if event["seq"] > seen]
        seen = max((event["seq"] for event in events), default=seen)
        news = [event for event in (events if before else events[-3:]) if story.is_news(event)]
        lines = render_change(before, run, news)
        now = time.monotonic()
        speed = rate.update(run, now)
        if run["step"] != shown_step and (now - last_step_time >= _PLAIN_STEP_S or is_over(run)):
            last_step_time, shown_step = now, run["step"]
            step = f"{render_clock(time.time())} {_progress_line(View(run=run, rate=speed), Terminal(unicode=False))}"
            lines = [step, *lines] if is_over(run) else [*lines, step]  # the end of a run is the last thing said
        for line in lines:
            say(line)
        if is_over(run):
            return run
        before = run
        client.wait(run_id, timeout_s=_TICK_S, version=run["version"])


def _watch_live(client: Client, run_id: str, rank: int) -> RunDetail:
    from rich.console import Console  # noqa: PLC0415 - only a live screen needs rich
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    fetch = _fetcher(client, run_id, rank)
    screen = sys.stdout  # rich puts its own stream in its place meanwhile
    console = Console(highlight=False, markup=False, soft_wrap=False)
    with Live(console=console, auto_refresh=False, transient=False, vertical_overflow="crop") as live:
        while True:
            view = fetch()
            lines = render_screen(view, Terminal.from_stream(screen))
            live.update(Text.from_ansi("\n".join(lines), no_wrap=True, overflow="crop"), refresh=True)
            if is_over(view.run):
                return view.run
            client.wait(run_id, timeout_s=_TICK_S, version=view.run["version"])


def _fetcher(client: Client, run_id: str, rank: int) -> Callable[[], View]:
    """A function that fetches everything a screen shows."""
    rate = Rate()

    def fetch() -> View:
        run = client.run(run_id)
        return View(
            run=run,
            metric=_fetch_metric(client, run),
            rank=rank,
            log=_fetch_log(client, run, rank),
            rate=rate.update(run, time.monotonic()),
        )

    return fetch


def _fetch_metric(client: Client, run: RunDetail) -> MetricView | None:
    name = main_metric(run["metrics"])
    if name is None:
        return None
    try:
        return client.metric(run["id"], name, rank=0, buckets=60)
    except NotFound:
        return None


def _fetch_log(client: Client, run: RunDetail, rank: int) -> list[str]:
    if run["attempt"] is None or rank >= num_ranks(run):
        return []
    try:
        chunk = client.log_chunk(run["id"], rank, tail=_LOG_LINES, limit_bytes=_LOG_BYTES)
    except NotFound:
        return []
    assembler = LineAssembler()
    pieces = (*assembler.feed(chunk["text"], behind_bytes=sys.maxsize), *assembler.finish())
    return [line for piece in pieces for line in piece.text.split("\n")]


def _progress_line(view: View, terminal: Terminal) -> str:
    run = view.run
    if run["step"] is None:
        return ""
    parts = [f"step {render_step(run['step'], run['total_steps'])}"]
    if view.rate:
        parts.append(f"{render_number(float(f'{view.rate:.3g}'))} steps/s")
        if run["total_steps"] and not is_over(run):
            left = max(0, run["total_steps"] - run["step"])
            parts.append(f"{render_duration(left / view.rate)} left")
    if run["tokens_per_s"]:
        parts.append(f"{run['tokens_per_s']:,.0f} tokens/s")
    return terminal.dot.join(parts)


def _loss_line(view: View, terminal: Terminal) -> str:
    if view.metric is None:
        return ""
    values = [y for _, y in metric_points(view.metric)]
    line = render_sparkline(values, width=min(60, terminal.width - 30), unicode=terminal.unicode)
    newest = view.run["metrics"].get(view.metric["name"])
    return f"{visible(view.metric['name'])} {line} {render_metric(newest)}"


def _render_ranks(run: RunDetail, terminal: Terminal) -> list[str]:
    """The ranks of the newest attempt by node, each with a sign for its state."""
    if not run["attempts"]:
        return []
    ranks = sorted(run["attempts"][-1]["ranks"], key=lambda rank: rank["rank"])
    lines = []
    for node in sorted({rank["node"] for rank in ranks}):
        signs = [_rank_sign(rank, terminal) for rank in ranks if rank["node"] == node]
        more = f" +{len(signs) - _MOST_RANKS}" if len(signs) > _MOST_RANKS else ""
        lines.append(f"node {node}  {' '.join(signs[:_MOST_RANKS])}{more}")
    return lines[:16]


def _rank_sign(rank: RankView, terminal: Terminal) -> str:
    """`3` while it runs, `3:ok`, `3:1` for an exit code, `3:-9` for a signal."""
    number = rank["rank"]
    if rank["signal"] is not None:
        by_us = rank["ended_by"] == "platform"
        return terminal.paint(f"{number}:-{rank['signal']}", None if by_us else "red", dim=by_us)
    if rank["exit_code"] is not None:
        ok = rank["exit_code"] == 0
        return terminal.paint(f"{number}:{'ok' if ok else rank['exit_code']}", "green" if ok else "red")
    return terminal.paint(f"{number}", "cyan")


def _checkpoint_line(run: RunDetail) -> str:
    kept = [item for item in run["checkpoints"] if item["state"] == "complete"]
    latest = next((item for item in kept if item["latest"]), None)
    newest = f", newest step {latest['step']} at {render_clock(latest['time'])}" if latest else ""
    return f"{render_count(len(kept), 'checkpoint')}{newest}"
