"""What `gangline submit` says of the run that it has queued: what was packed, and what to do next. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gangline.cli.describe import describe_code, num_ranks
from gangline.cli.nextsteps import next_commands
from gangline.cli.terminal import Terminal
from gangline.cli.text import render_count, visible

if TYPE_CHECKING:
    from gangline.wire.views import RunDetail

__all__ = ["block", "render_submitted"]

_LABEL = 8


def render_submitted(run: RunDetail, terminal: Terminal) -> list[str]:
    """The run's id, what was packed and what was left out by which rule, and what to do next."""
    gang = f"{render_count(run['nodes'], 'node')} x {render_count(run['procs_per_node'], 'rank')}"
    total = f" = {num_ranks(run)} ranks" if run["nodes"] > 1 else ""
    if (script := (run["spec"].get("slurm") or {}).get("script")) is not None:
        gang, total = f"{visible(script)} as it asks", ""
    head = f"{terminal.heading(run['id'])} {run['phase']}: {gang}{total} in pool {visible(run['pool'])}"
    code = describe_code(run["code"]) if run["code"] else []
    commands = next_commands(run)
    width = max(len(command) for command, _ in commands)
    steps = [f"{command:<{width}}  {terminal.paint(text, dim=True)}" for command, text in commands]
    return [head, *block("packed", code, terminal), *block("next", steps, terminal)]


def block(title: str, lines: Sequence[str], terminal: Terminal) -> list[str]:
    """Lines with a title in front of the first."""
    titles = [title, *[""] * len(lines)]
    return [f"{terminal.paint(f'{name:<{_LABEL}}', dim=True)}{line}" for name, line in zip(titles, lines, strict=False)]
