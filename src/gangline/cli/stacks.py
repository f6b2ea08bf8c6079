"""`gangline stacks`: where the ranks of a run are, and who waits for whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from gangline.cli import connection
from gangline.cli.describe import is_over
from gangline.cli.options import Whole, echo_json, echo_lines, json_option, run_argument
from gangline.cli.prose import fold_message
from gangline.cli.terminal import Terminal
from gangline.cli.text import render_clock, render_duration, visible, wrap
from gangline.client.client import Client
from gangline.domain.errors import NotFound
from gangline.wire.views import StacksRank, StacksView

__all__ = ["command"]

_MOST_FRAMES = 30


@click.command("stacks")
@run_argument
@click.option(
    "-r", "--rank", "ranks", type=Whole(), multiple=True, help="Every thread and process of this rank; repeatable."
)
@click.option("--native", is_flag=True, help="With C++ frames, by py-spy where it is installed; takes seconds.")
@click.option("--last", is_flag=True, help="The newest that were taken, by you or the watchdog; takes none.")
@json_option()
def command(*, run: str, ranks: tuple[int, ...], native: bool, last: bool, as_json: bool) -> None:
    """Show where the ranks of a run are: who waits for whom.

    First one sentence, then the ranks by their stacks: those that are equal are shown once. Training goes on as if
    nothing had happened. Of a run that is over, the newest stacks that were taken are shown.
    """
    client = connection.connect()
    stacks = _fetch(client, run, ranks, native=native, last=last)
    if as_json:
        echo_json(stacks)
    else:
        echo_lines(render_stacks(stacks, ranks, Terminal.from_stream()))


def render_stacks(stacks: StacksView, ranks: Sequence[int], terminal: Terminal) -> list[str]:
    """The whole page.

    Args:
        ranks: those to show with every thread and process; empty: all, by their main threads.
    """
    when = f"{render_clock(stacks['time'])}, in {render_duration(stacks['taken_s'])}"
    lines = [terminal.heading(f"Attempt {stacks['attempt']}, taken {when}")]
    lines += wrap(fold_message(stacks["text"]), terminal.page)
    lines += wrap(fold_message(stacks["hint"]), terminal.page)
    if stacks["silent_nodes"]:
        lines.append(f"No answer from node {', '.join(map(str, stacks['silent_nodes']))}.")
    shown = [rank for rank in stacks["ranks"] if not ranks or rank["rank"] in ranks]
    if ranks:
        for rank in shown:
            lines += ["", *_render_rank(rank, terminal)]
        return lines
    for members in _alike(shown):
        lines += ["", terminal.heading(_title(members)), *_render_main(members[0])]
    return lines


def _fetch(client: Client, run: str, ranks: Sequence[int], *, native: bool, last: bool) -> StacksView:
    if not last:
        seen = client.wait(run, timeout_s=0.0, version=-1)
        run, last = seen["id"], is_over(seen)
    if not last:
        return client.take_stacks(run, ranks=ranks or None, native=native)
    stacks = client.last_stacks(run)
    missing = sorted(set(ranks) - {rank["rank"] for rank in stacks["ranks"]})
    if missing:
        had = ", ".join(str(rank["rank"]) for rank in stacks["ranks"])
        raise NotFound(f"The newest stacks of run `{run}` have no rank {missing[0]}", fix=f"They have: {had}.")
    return stacks


def _alike(ranks: Sequence[StacksRank]) -> list[list[StacksRank]]:
    """Ranks with the same stack, the largest group first."""
    found: dict[str, list[StacksRank]] = {}
    for rank in ranks:
        main = _main(rank)
        key = f"{rank['state']} {[] if main is None else _plain(main)}"
        found.setdefault(key, []).append(rank)
    return sorted(found.values(), key=lambda members: (-len(members), members[0]["rank"]))


def _title(members: Sequence[StacksRank]) -> str:
    numbers = [rank["rank"] for rank in members]
    state = members[0]["state"]
    place = visible(members[0]["place"]) if state not in {"ended", "silent"} else ""
    held = "" if state == "runs" else f"{state}{', ' if place else ''}"
    return f"Rank{'s' if len(numbers) > 1 else ''} {_spans(numbers)}: {held}{place}"


def _spans(numbers: Sequence[int]) -> str:
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def _render_main(rank: StacksRank) -> list[str]:
    main = _main(rank)
    notes = [f"  {visible(process['note'])}" for process in rank["processes"][:1] if process["note"]]
    return [*(_frames(main["frames"]) if main is not None else ()), *notes]


def _render_rank(rank: StacksRank, terminal: Terminal) -> list[str]:
    lines = [terminal.heading(f"{_title([rank])}  (node {rank['node']}, {visible(rank['host'])}, pid {rank['pid']})")]
    for process in rank["processes"]:
        if process["child"]:
            lines.append(f"Process {process['pid']}")
        if process["note"]:
            lines.append(f"  {visible(process['note'])}")
        for thread in reversed(process["threads"]):
            lines += [f"  Thread {visible(thread['name'])}", *(f"  {line}" for line in _frames(thread["frames"]))]
    return lines


def _main(rank: StacksRank) -> Mapping[str, Any] | None:
    """The main thread of the first process that has a stack."""
    for process in rank["processes"]:
        if process["threads"]:
            main: Mapping[str, Any] = process["threads"][-1]
            return main
    return None


def _plain(thread: Mapping[str, Any]) -> list[tuple[str, int, str]]:
    return [(frame["file"], frame["line"], frame["function"]) for frame in thread["frames"]]


def _frames(frames: Sequence[Mapping[str, Any]]) -> list[str]:
    """Innermost call last, as in a traceback."""
    lines = []
    if len(frames) > _MOST_FRAMES:
        lines.append(f"  … {len(frames) - _MOST_FRAMES} more calls above")
    for frame in reversed(frames[:_MOST_FRAMES]):
        at = f":{frame['line']}" if frame["line"] else ""
        lines.append(f"  {visible(frame['file'])}{at} in {visible(frame['function'])}")
        if frame["code"]:
            lines.append(f"      {visible(frame['code'])}")
    return lines
